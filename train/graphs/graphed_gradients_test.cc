// Without a GPU: that the choice of a CUDA graph is harmless. With one: train_bench check.
#include "train/graphs/graphed_gradients.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "train/gradients/recovery.h"
#include "train/models/gpt.h"
#include "train/optimizers/fused_adam.h"
#include "train/trainer/trainer.h"

namespace plimsoll::train::graphed_gradients_test {
namespace {

TEST(GraphedGradients, LeavesABatchOnTheCpuAlone) {
  torch::nn::Linear model(4, 1);
  Metrics metrics;
  GraphedGradients graph(*model, metrics);
  int calls = 0;
  const auto loss = [&](const Batch& rows) {
    ++calls;
    return model(rows.tensors[0]).mean();
  };
  EXPECT_FALSE(graph.Run(loss, Batch{{torch::randn({2, 4})}}, {.rows = 2}));
  EXPECT_EQ(calls, 0);
  EXPECT_FALSE(graph.replayed());
  EXPECT_FALSE(graph.RanOut());
}

/// Losses and parameters of some steps in pieces, with dropout and checkpoints.
std::vector<at::Tensor> After(bool cuda_graph) {
  torch::manual_seed(3);
  const auto model = std::make_shared<Gpt>(GptOptions{
      .vocabulary = 50, .context = 16, .width = 16, .layers = 2, .heads = 2, .dropout = 0.1});
  Trainer trainer(
      model, std::make_shared<FusedAdamW>(model->parameters()),
      [&](const Batch& rows) { return model->Loss(rows); },
      {.micro_batch = 3, .checkpoint = CheckpointPolicy::All(), .cuda_graph = cuda_graph});
  std::vector<at::Tensor> result;
  for (int i = 0; i < 3; ++i) {
    const at::Tensor tokens = torch::randint(50, {8, 16}, at::kLong);
    const StepReport report = trainer.Step(Batch{{tokens, tokens}});
    EXPECT_FALSE(report.graphed);
    result.push_back(torch::tensor(report.loss));
  }
  for (const at::Tensor& one : model->parameters()) result.push_back(one.detach());
  return result;
}

TEST(GraphedGradients, ChangeNothingOnTheCpu) {
  const auto with = After(true);
  const auto without = After(false);
  for (std::size_t i = 0; i < with.size(); ++i) EXPECT_TRUE(torch::equal(with[i], without[i]));
}

/// What a graph reads from its device is what is otherwise a number.
TEST(GraphedGradients, SharesOnTheDeviceCountAsNumbersDo) {
  torch::nn::Linear model(4, 1);
  const Batch batch{{torch::randn({7, 4}) * 100}};
  const Pieces pieces{.rows = 3};
  for (const auto type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const auto loss = [&](const Batch& rows) { return model(rows.tensors[0]).mean().to(type); };
    Shares shares = SharesOf(batch, pieces);
    const at::Tensor expected = AccumulateGradients(loss, batch, pieces, shares);
    const at::Tensor gradient = model->weight.grad().clone();
    ClearGradients(*model);
    shares.on_device = torch::tensor(shares.numbers, at::kDouble);
    EXPECT_TRUE(torch::equal(AccumulateGradients(loss, batch, pieces, shares), expected)) << type;
    EXPECT_TRUE(torch::equal(model->weight.grad(), gradient)) << type;
    ClearGradients(*model);
  }
}

}  // namespace
}  // namespace plimsoll::train::graphed_gradients_test

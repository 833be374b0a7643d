#include "train/models/vocabulary_loss.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "train/models/gpt.h"
#include "train/optimizers/fused_adam.h"
#include "train/trainer/trainer.h"

namespace plimsoll::train::vocabulary_loss_test {
namespace {

at::Tensor LossWith(LinearCrossEntropyOptions options, bool chunked) {
  torch::manual_seed(4);
  const at::Tensor hidden = torch::randn({3, 5, 8}, torch::kDouble);
  const at::Tensor weight = torch::randn({11, 8}, torch::kDouble);
  const at::Tensor targets = torch::randint(0, 11, {3, 5}, torch::kLong);
  VocabularyLoss loss(std::move(options));
  loss->set_chunked(chunked);
  return loss(hidden, weight, targets, torch::randn({11}, torch::kDouble));
}

TEST(VocabularyLoss, IsTheSameInChunks) {
  const auto same = [](const LinearCrossEntropyOptions& options) {
    const double whole = LossWith(options, false).item<double>();
    EXPECT_NEAR(LossWith(options, true).item<double>(), whole, 1e-12 * std::abs(whole));
  };
  same({});
  same({.ignore_index = 3});
  same({.reduction = LinearCrossEntropyOptions::Reduction::kSum});
  same({.label_smoothing = 0.1, .class_weights = torch::rand({11}, torch::kDouble)});
  same({.z_loss = 0.01, .soft_cap = 5});
}

TEST(VocabularyLoss, IsALeverOfTheTrainer) {
  const GptOptions sizes{.vocabulary = 4096, .context = 32, .width = 16, .layers = 2, .heads = 2};
  auto generator = at::detail::createCPUGenerator(5);
  const at::Tensor text = torch::randint(0, sizes.vocabulary, {8, 33}, generator, at::kLong);
  const Batch batch{{text.slice(1, 0, 32).contiguous(), text.slice(1, 1).contiguous()}};
  const auto train = [&](std::optional<Bytes> budget, std::string* levers) {
    torch::manual_seed(3);
    const auto model = std::make_shared<Gpt>(sizes);
    // One piece: the logits are nearly all there is.
    Trainer trainer(model, std::make_shared<FusedAdamW>(model->parameters()),
                    [&](const Batch& rows) { return model->Loss(rows); },
                    {.budget = budget, .micro_batch = 8, .offload = false});
    StepReport report;
    for (int i = 0; i < 3; ++i) report = trainer.Step(batch);
    *levers = report.levers.ToString();
    return report;
  };
  std::string levers;
  const StepReport plain = train(std::nullopt, &levers);
  EXPECT_EQ(levers, "micro-batch 8, checkpoint none");
  const StepReport tight = train(plain.memory.peak_allocated * 6 / 10, &levers);
  EXPECT_EQ(levers, "micro-batch 8, checkpoint none, loss in chunks");
  EXPECT_NEAR(tight.loss, plain.loss, 1e-5 * plain.loss);
}

}  // namespace
}  // namespace plimsoll::train::vocabulary_loss_test

// What each rank holds of a model that ranks share, and a step in which one of them runs out.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "train/budget/cpu_allocator.h"
#include "train/parallel/data_parallel/agreed_gradients.h"
#include "train/parallel/ranks/mesh.h"
#include "train/parallel/ranks/rank_processes_for_tests.h"
#include "train/parallel/tensor/tensor_parallel.h"
#include "train/parallel/training_for_tests.h"

namespace plimsoll::train::tensor_memory_test {
namespace {

constexpr std::int64_t kVocabulary = 8192;
constexpr std::int64_t kPositions = 128;

Bytes SplitBytes(Gpt& model, const TensorParallel& tensor) {
  Bytes bytes = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    if (tensor.IsSplit(parameter)) bytes += static_cast<Bytes>(parameter.nbytes());
  }
  return bytes;
}

/// The most that forward and backward take beyond what is there before.
Bytes PeakOfStep(Gpt& model) {
  CpuAllocator& memory = CpuAllocator::Installed();
  const at::Tensor tokens = at::randint(kVocabulary, {1, kPositions});
  memory.ResetPeak();
  const Bytes before = memory.allocated();
  model.Loss(tokens, tokens).backward();
  return memory.peak() - before;
}

/// What is held once gloo's threads have let go of what they sent: they do so a moment after the
/// message is there, and on a busy machine later.
Bytes HeldBytes() {
  Bytes least = CpuAllocator::Installed().allocated();
  for (int unchanged = 0; unchanged < 50; ++unchanged) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const Bytes now = CpuAllocator::Installed().allocated();
    if (now < least) unchanged = 0;
    least = std::min(least, now);
  }
  return least;
}

const RankTaskNamed kMemory("tensor memory", [](const Launch& launch, const auto&) {
  Ranks ranks(launch);
  Findings findings;
  for (const Outside outside : {Outside::kWhole, Outside::kSequence}) {
    Gpt model(
        {.vocabulary = kVocabulary, .context = kPositions, .width = 32, .layers = 4, .heads = 4});
    TensorParallel tensor(model, ranks, {.outside = outside});
    const std::string name = outside == Outside::kWhole ? "whole" : "sequence";
    findings["parameters " + name] = at::tensor(SplitBytes(model, tensor));
    findings["logits " + name] = at::tensor(PeakOfStep(model));
  }
  // Without the vocabulary: activations.
  for (const Outside outside : {Outside::kWhole, Outside::kSequence}) {
    Gpt model({.vocabulary = 8, .context = kPositions, .width = 64, .layers = 8, .heads = 4});
    TensorParallel tensor(model, ranks, {.outside = outside});
    const at::Tensor tokens = at::zeros({4, kPositions}, at::kLong);
    const Bytes before = HeldBytes();
    const at::Tensor loss = model.Loss(tokens, tokens);
    findings[outside == Outside::kWhole ? "kept whole" : "kept sequence"] =
        at::tensor(HeldBytes() - before);
  }
  return findings;
});

TEST(TensorMemory, EachRankHoldsItsPart) {
  Gpt model(
      {.vocabulary = kVocabulary, .context = kPositions, .width = 32, .layers = 4, .heads = 4});
  Bytes split = 0;
  for (const auto& parameter : model.named_parameters()) {
    const bool row_bias =
        parameter.key().ends_with("project.bias") || parameter.key().ends_with("down.bias");
    const bool is_split = !row_bias && parameter.key().find("norm") == std::string::npos &&
                          parameter.key().find("positions") == std::string::npos;
    if (is_split) split += static_cast<Bytes>(parameter.value().nbytes());
  }
  const Bytes peak = PeakOfStep(model);
  const Bytes logits = kVocabulary * kPositions * 4;
  for (const RankOutcome& outcome : RunRanks({.task = "tensor memory", .size = 4})) {
    ASSERT_TRUE(outcome.good()) << outcome.error;
    const auto found = [&](const char* name) {
      return outcome.findings.at(name).item<std::int64_t>();
    };
    for (const char* name : {"parameters whole", "parameters sequence"}) {
      EXPECT_EQ(found(name), split / 4) << name;
    }
    for (const char* name : {"logits whole", "logits sequence"}) {
      EXPECT_LT(found(name), logits) << name << ": they are never whole";
      EXPECT_LT(found(name), peak / 3) << name;
    }
    EXPECT_LT(found("kept sequence"), found("kept whole") * 2 / 3);
  }
}

const int kFailures = Nightly(20, 6);

/// In each step but the first, one of the ranks runs out of memory, always further on: from the
/// first allocation of forward to the last ones of backward.
const RankTaskNamed kOutOfMemory("tensor out of memory", [](const Launch& launch, const auto&) {
  Ranks ranks(launch, {.time_limit = kAmpleLimit});
  Mesh mesh(ranks, {.data = 2, .tensor = 2});
  const auto model = std::dynamic_pointer_cast<Gpt>(SmallModel("four heads", launch.rank + 1));
  model->set_checkpoint_policy(CheckpointPolicy::Plan({{1, 2}}));
  TensorParallel tensor(*model, mesh.along(Dimension::kTensor), {.outside = Outside::kSequence});
  DataParallel parallel(*model, mesh.along(Dimension::kData));
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  const Pieces pieces{.rows = 8, .weight = [&](const Batch& rows) { return model->Weight(rows); }};
  CpuAllocator& memory = CpuAllocator::Installed();
  Launch place;
  place.rank = mesh.coordinate(Dimension::kData);
  place.size = mesh.size(Dimension::kData);
  std::vector<at::Tensor> losses;
  std::int64_t repeats = 0;
  std::int64_t requests = 0;
  for (int step = 0; step <= kFailures; ++step) {
    bool fails = step > 0 && step % launch.size == launch.rank;
    const auto loss = [&](const Batch& rows) {
      const std::int64_t later = requests * (step - 1) / kFailures;
      if (std::exchange(fails, false)) memory.FailAt(memory.requests() + later);
      return model->Loss(rows);
    };
    const Batch mine = RowsOf(WholeBatch("four heads", 3 * step), place);
    const std::int64_t before = memory.requests();
    const AgreedGradients agreed =
        AccumulateInAgreement(*model, ranks, parallel, loss, mine, pieces);
    if (step == 0) requests = memory.requests() - before;
    losses.push_back(agreed.loss);
    repeats += agreed.repeats;
    optimizer.step();
  }
  const TensorParallel::WholeModel whole(tensor);
  return Findings{{"losses", at::stack(losses)},
                  {"parameters", Flat(model->parameters())},
                  {"repeats", at::tensor(repeats)}};
});

TEST(TensorMemory, OutOfMemoryOnOneRankChangesNothing) {
  const auto model = SmallModel("four heads", 1);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  std::vector<at::Tensor> losses;
  for (int step = 0; step <= kFailures; ++step) {
    optimizer.zero_grad();
    losses.push_back(model->Loss(WholeBatch("four heads", 3 * step)));
    losses.back().backward();
    optimizer.step();
  }
  for (const RankOutcome& outcome : RunRanks({.task = "tensor out of memory", .size = 4})) {
    ASSERT_TRUE(outcome.good()) << outcome.error;
    EXPECT_EQ(outcome.findings.at("repeats").item<std::int64_t>(), kFailures);
    EXPECT_LT(RelativeError(outcome.findings.at("losses"), at::stack(losses).detach()), 1e-6);
    EXPECT_LT(RelativeError(outcome.findings.at("parameters"), Flat(model->parameters())), 1e-6);
  }
}

}  // namespace
}  // namespace plimsoll::train::tensor_memory_test

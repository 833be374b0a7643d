#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <iostream>
#include <optional>
#include <utility>

#include "train/budget/budget.h"
#include "train/budget/cpu_allocator.h"
#include "train/gradients/recovery.h"
#include "train/parallel/pipeline/pipeline.h"
#include "train/parallel/pipeline/stage_split.h"
#include "train/parallel/ranks/rank_processes_for_tests.h"
#include "train/parallel/training_for_tests.h"

namespace plimsoll::train::pipeline_memory_test {
namespace {

/// With so many stages, chunks and failures as the words say. In each step one of the ranks runs
/// out of memory, further on than in the last one, from the first allocation to the last.
const RankTaskNamed kOutOfMemory("pipeline out of memory", [](const Launch& launch,
                                                              const auto& words) {
  Ranks ranks(launch, {.time_limit = kAmpleLimit});
  const int failures = std::stoi(words[2]);
  const auto model = SmallModel("deep gpt", 1);
  Pipeline pipeline(model->AsLayers(), ranks,
                    {.stages = std::stoi(words[0]), .chunks = std::stoi(words[1])});
  torch::optim::SGD optimizer(pipeline.model().parameters(), 0.1);
  const Pieces pieces{.rows = 1, .weight = [&](const Batch& rows) { return model->Weight(rows); }};
  const Launch among{.rank = pipeline.pipeline(), .size = pipeline.pipelines()};
  CpuAllocator& memory = CpuAllocator::Installed();
  std::int64_t requests = 0;
  std::int64_t repeats = 0;
  std::vector<at::Tensor> losses;
  for (int step = 0; step <= failures; ++step) {
    bool fails = step > 0 && step % launch.size == launch.rank;
    optimizer.zero_grad();
    const Batch mine = RowsOf(WholeBatch("deep gpt", 3 * step), among);
    std::optional<StepUndo> undo;
    at::Tensor loss;
    const auto attempt = [&] {
      undo.emplace(pipeline.model(), c10::kCPU);
      const std::int64_t before = memory.requests();
      const std::int64_t further_on = requests * (step - 1) / failures;
      if (std::exchange(fails, false)) memory.FailAt(before + further_on);
      loss = pipeline.AccumulateGradients(mine, pieces);
      // The first step's, which goes through.
      if (step == 0) requests = memory.requests() - before;
    };
    while (!ranks.Try(attempt).empty()) {
      ++repeats;
      undo->Undo();
    }
    losses.push_back(loss);
    optimizer.step();
  }
  return Findings{{"losses", at::stack(losses)}, {"repeats", at::tensor(repeats)}};
});

void ExpectOutOfMemoryChangesNothing(const std::string& stages, const std::string& chunks,
                                     int failures) {
  const auto model = SmallModel("deep gpt", 1);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  std::vector<at::Tensor> losses;
  for (int step = 0; step <= failures; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = model->Loss(WholeBatch("deep gpt", 3 * step));
    loss.backward();
    optimizer.step();
    losses.push_back(loss.detach());
  }
  const auto outcomes = RunRanks({.task = "pipeline out of memory",
                                  .size = 4,
                                  .words = {stages, chunks, std::to_string(failures)}});
  for (const RankOutcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.good()) << outcome.error;
    EXPECT_EQ(outcome.findings.at("repeats").item<std::int64_t>(), failures);
    EXPECT_LT(RelativeError(outcome.findings.at("losses"), at::stack(losses)), 1e-6);
  }
}

TEST(PipelineMemory, OutOfMemoryOnOneRankChangesNothing) {
  ExpectOutOfMemoryChangesNothing("4", "2", Nightly(20, 8));
  // Two pipelines.
  ExpectOutOfMemoryChangesNothing("2", "1", Nightly(6, 4));
}

constexpr std::int64_t kRows = 8;

std::shared_ptr<Gpt> LargerGpt() {
  return std::make_shared<Gpt>(
      GptOptions{.vocabulary = 256, .context = 32, .width = 128, .layers = 16, .heads = 4});
}

Batch TokensOf(std::int64_t rows) {
  return {{at::randint(256, {rows, 32}), at::randint(256, {rows, 32})}};
}

/// The most that two steps hold: parameters, gradients, AdamW's state, activations.
template <class Gradients>
double PeakOfSteps(std::vector<at::Tensor> parameters, Gradients add_gradients, Bytes base) {
  Budget budget(c10::kCPU, std::nullopt);
  torch::optim::AdamW optimizer(std::move(parameters));
  const PeakScope scope(budget);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    add_gradients();
    optimizer.step();
  }
  return static_cast<double>(scope.figures().peak_allocated - base);
}

Bytes Allocated() { return CpuAllocator::Installed().allocated(); }

double PeakOfOneRank(std::int64_t rows_at_once) {
  const Bytes base = Allocated();
  const auto model = LargerGpt();
  const Batch batch = TokensOf(kRows);
  const auto gradients = [&] {
    AccumulateGradients([&](const Batch& rows) { return model->Loss(rows); }, batch,
                        {.rows = rows_at_once});
  };
  return PeakOfSteps(model->parameters(), gradients, base);
}

const RankTaskNamed kPeak("pipeline peak", [](const Launch& launch, const auto& words) {
  Ranks ranks(launch);
  const std::int64_t rows = std::stoll(words[0]);
  const Bytes base = Allocated();
  ModelLayers layers = LargerGpt()->AsLayers();
  const auto figures = MeasureLayers(layers, TokensOf(rows));
  const auto split = SplitStages(
      figures, {.stages = launch.size, .micro_batches = static_cast<int>(kRows / rows)});
  Pipeline pipeline(std::move(layers), ranks, {.split = split});
  const Batch batch = TokensOf(kRows);
  const auto gradients = [&] { pipeline.AccumulateGradients(batch, {.rows = rows}); };
  return Findings{
      {"peak", at::tensor(PeakOfSteps(pipeline.model().parameters(), gradients, base))}};
});

TEST(PipelineMemory, TheFullestOfFourStages) {
  constexpr std::int64_t kMicroBatch = 1;
  const double whole = PeakOfOneRank(kRows);
  const double in_pieces = PeakOfOneRank(kMicroBatch);
  const auto outcomes =
      RunRanks({.task = "pipeline peak", .size = 4, .words = {std::to_string(kMicroBatch)}});
  double fullest = 0;
  for (const RankOutcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.good()) << outcome.error;
    fullest = std::max(fullest, outcome.findings.at("peak").item<double>());
  }
  std::cout << "the fullest of 4 stages: " << 100 * fullest / whole
            << " % of one rank with the whole batch (" << whole / kMiB << " MiB), "
            << 100 * fullest / in_pieces << " % of one rank with a micro-batch at a time\n";
  EXPECT_LE(fullest, 0.35 * whole);
}

}  // namespace
}  // namespace plimsoll::train::pipeline_memory_test

// Trainer where each rank has other parameters: a pipeline, or layers that ranks share.
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "train/budget/cpu_allocator.h"
#include "train/parallel/ranks/rank_processes_for_tests.h"
#include "train/parallel/training_for_tests.h"
#include "train/trainer/trainer.h"

namespace plimsoll::train::trainer_parts_test {
namespace {

namespace fs = std::filesystem;

const std::string kModel = "four heads";

/// How ranks train it: "plain", "pipeline", "interleaved", "pipelines", "tensor", "data x tensor".
class Job {
 public:
  Job(const Launch& launch, const std::string& way, std::optional<Bytes> budget = {})
      : ranks_(std::make_shared<Ranks>(launch, RanksOptions{.time_limit = kAmpleLimit})),
        model_(std::static_pointer_cast<Gpt>(SmallModel(kModel, 1))) {
    const auto whole = model_;
    TrainerOptions options{.budget = budget,
                           .weight = [whole](const Batch& rows) { return whole->Weight(rows); },
                           .clip_norm = 0.5,
                           .ranks = ranks_};
    Split(way, options);
    std::shared_ptr<torch::nn::Module> trained = model_;
    if (options.team.pipeline) trained = options.team.pipeline->shared_model();
    trainer_.emplace(
        trained, AdamWForms(trained->parameters(), torch::optim::AdamWOptions(0.01)),
        [whole](const Batch& rows) { return whole->Loss(rows); }, options);
  }

  StepReport Step(int step) { return trainer_->Step(Rows(step)); }
  Batch Rows(int step) const { return RowsOf(WholeBatch(kModel, step), share_); }
  Trainer& trainer() { return *trainer_; }

 private:
  void Split(const std::string& way, TrainerOptions& options) {
    const int size = ranks_->size();
    if (way == "tensor" || way == "data x tensor") {
      const int sharing = way == "tensor" ? size : size / 2;
      options.team.mesh =
          std::make_shared<Mesh>(*ranks_, MeshSizes{.data = size / sharing, .tensor = sharing});
      options.team.tensor =
          std::make_shared<TensorParallel>(*model_, options.team.mesh->along(Dimension::kTensor));
      share_ = {.rank = options.team.mesh->coordinate(Dimension::kData), .size = size / sharing};
    } else if (way != "plain") {
      const PipelineOptions pipeline{.stages = way == "pipelines" ? size / 2 : size,
                                     .chunks = way == "interleaved" ? 2 : 1};
      options.team.pipeline = std::make_shared<Pipeline>(model_->AsLayers(), *ranks_, pipeline);
      share_ = {.rank = options.team.pipeline->pipeline(),
                .size = options.team.pipeline->pipelines()};
    }
  }

  std::shared_ptr<Ranks> ranks_;
  std::shared_ptr<Gpt> model_;
  /// Which rows are this rank's.
  Launch share_{.rank = 0, .size = 1};
  std::optional<Trainer> trainer_;
};

/// Way. Losses of twenty steps, and of two batches at the end.
const RankTaskNamed kTwenty("parts", [](const Launch& launch, const auto& words) {
  Job job(launch, words[0]);
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) losses.push_back(job.Step(step).loss);
  for (const int step : {2, 3}) losses.push_back(job.trainer().Evaluate(job.Rows(step)));
  return Findings{{"losses", at::tensor(losses)}};
});

at::Tensor LossesAlone() {
  const auto outcomes = RunRanks({.task = "parts", .size = 1, .words = {"plain"}});
  EXPECT_TRUE(outcomes[0].good()) << outcomes[0].error;
  return outcomes[0].findings.at("losses");
}

TEST(TrainerOverRanks, EqualsOneRankWhereEachHasAPart) {
  const at::Tensor right = LossesAlone();
  for (const auto& [way, size] : {std::pair{"pipeline", 2},
                                  {"interleaved", 2},
                                  {"pipelines", 4},
                                  {"tensor", 2},
                                  {"tensor", 4},
                                  {"data x tensor", 4}}) {
    // By day those that no test below takes.
    const bool by_day =
        way == std::string("interleaved") || (way == std::string("tensor") && size == 4);
    if (!IsNightly() && !by_day) continue;
    for (const RankOutcome& outcome : RunRanks({.task = "parts", .size = size, .words = {way}})) {
      ASSERT_TRUE(outcome.good()) << way << ": " << outcome.error;
      EXPECT_LT(RelativeError(outcome.findings.at("losses"), right), 1e-6) << way << " " << size;
    }
  }
}

/// Way. In each step but the first, one of the ranks runs out of memory.
const RankTaskNamed kFailing("parts run out", [](const Launch& launch, const auto& words) {
  Job job(launch, words[0]);
  CpuAllocator& memory = CpuAllocator::Installed();
  std::vector<double> losses;
  std::int64_t retries = 0;
  for (int step = 0; step < kSteps; ++step) {
    if (step > 0 && step % launch.size == launch.rank) {
      memory.FailAt(memory.requests() + 13 * step);
    }
    const StepReport report = job.Step(step);
    memory.FailAt(-1);
    losses.push_back(report.loss);
    retries += report.retries;
  }
  for (const int step : {2, 3}) losses.push_back(job.trainer().Evaluate(job.Rows(step)));
  return Findings{{"losses", at::tensor(losses)}, {"retries", at::tensor(retries)}};
});

TEST(TrainerOverRanks, OutOfMemoryInAPartChangesNothing) {
  const at::Tensor right = LossesAlone();
  for (const std::string way : {"pipelines", "data x tensor"}) {
    const auto outcomes = RunRanks({.task = "parts run out", .size = 4, .words = {way}});
    for (const RankOutcome& outcome : outcomes) EXPECT_TRUE(outcome.good()) << outcome.error;
    for (const RankOutcome& outcome : outcomes) {
      ASSERT_TRUE(outcome.good()) << way;
      // Some steps are over before.
      EXPECT_GT(outcome.findings.at("retries").item<std::int64_t>(), kSteps / 2) << way;
      EXPECT_LT(RelativeError(outcome.findings.at("losses"), right), 1e-6) << way;
    }
  }
}

/// Way, path, first step, last one: from a state if the first is not 0; saved at the end.
const RankTaskNamed kSaved("parts saved", [](const Launch& launch, const auto& words) {
  Job job(launch, words[0]);
  const fs::path path = words[1];
  const int begin = std::stoi(words[2]);
  if (begin > 0 && job.trainer().Load(path) != "so far") throw std::runtime_error("other words");
  std::vector<double> losses;
  for (int step = begin; step < std::stoi(words[3]); ++step) losses.push_back(job.Step(step).loss);
  job.trainer().Save(path, "so far");
  return Findings{{"losses", at::tensor(losses)}};
});

TEST(TrainerOverRanks, GoesOnFromASaveInParts) {
  const fs::path path =
      fs::path(testing::TempDir()) / c10::str("trainer_parts.", getpid(), ".state");
  const at::Tensor right = LossesAlone();
  const auto run = [&](const std::string& way, int size, int begin, int end) {
    return RunRanks({.task = "parts saved",
                     .size = size,
                     .words = {way, path.string(), std::to_string(begin), std::to_string(end)}});
  };
  for (const std::string way : {"pipelines", "data x tensor"}) {
    int begin = 0;
    for (const int end : {kSteps / 2, kSteps}) {
      for (const RankOutcome& outcome : run(way, 4, begin, end)) {
        ASSERT_TRUE(outcome.good()) << way << ": " << outcome.error;
        EXPECT_LT(RelativeError(outcome.findings.at("losses"), right.slice(0, begin, end)), 1e-6);
      }
      begin = end;
    }
  }
  for (const RankOutcome& outcome : run("tensor", 4, 1, 2)) {
    EXPECT_NE(outcome.error.find("it was saved by layers split among 2 ranks"), std::string::npos)
        << outcome.error;
  }
}

/// Way, budget. The most that was allocated.
const RankTaskNamed kBudget("parts budget", [](const Launch& launch, const auto& words) {
  Job job(launch, words[0], std::stoll(words[1]));
  Batch batch = job.Rows(0);
  for (at::Tensor& tensor : batch.tensors) tensor = tensor.repeat({16, 1});
  Bytes peak = 0;
  StepReport report;
  for (int step = 0; step < 2; ++step) {
    report = job.trainer().Step(batch);
    peak = std::max(peak, report.memory.peak_allocated);
  }
  return Findings{{"loss", at::tensor(report.loss)}, {"peak", at::tensor(peak)}};
});

TEST(TrainerOverRanks, KeepsABudgetWhereEachHasAPart) {
  for (const std::string way : {"pipeline", "tensor"}) {
    const auto run = [&](Bytes budget) {
      auto outcomes =
          RunRanks({.task = "parts budget", .size = 2, .words = {way, std::to_string(budget)}});
      for (const RankOutcome& outcome : outcomes) EXPECT_TRUE(outcome.good()) << outcome.error;
      return outcomes;
    };
    const auto all = run(Bytes{1} << 30);
    ASSERT_TRUE(all[0].good() && all[1].good());
    const auto number = [](const RankOutcome& outcome, const char* name) {
      return outcome.findings.at(name).item<std::int64_t>();
    };
    const Bytes most = std::max(number(all[0], "peak"), number(all[1], "peak"));
    const Bytes budget = most / 2;
    for (const RankOutcome& outcome : run(budget)) {
      ASSERT_TRUE(outcome.good()) << way;
      EXPECT_LE(number(outcome, "peak"), budget) << way;
      EXPECT_LT(RelativeError(outcome.findings.at("loss"), all[0].findings.at("loss")), 1e-6)
          << way;
    }
  }
}

}  // namespace
}  // namespace plimsoll::train::trainer_parts_test

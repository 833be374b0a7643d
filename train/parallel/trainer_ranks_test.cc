// Trainer over several ranks, in processes of their own.
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "train/budget/cpu_allocator.h"
#include "train/parallel/ranks/rank_processes_for_tests.h"
#include "train/parallel/training_for_tests.h"
#include "train/trainer/trainer.h"

namespace plimsoll::train::trainer_ranks_test {
namespace {

namespace fs = std::filesystem;

std::shared_ptr<Ranks> Join(const Launch& launch) {
  return std::make_shared<Ranks>(launch, RanksOptions{.time_limit = kAmpleLimit});
}

TrainerOptions OptionsOf(const TrainModel& model, std::shared_ptr<Ranks> ranks,
                         const std::string& shard) {
  TrainerOptions options{.weight = [&model](const Batch& rows) { return model.Weight(rows); },
                         .clip_norm = 0.5,
                         .ranks = std::move(ranks)};
  if (shard != "none") options.team.shard = static_cast<Shard>(std::stoi(shard));
  return options;
}

Trainer MakeTrainer(const std::shared_ptr<TrainModel>& model, TrainerOptions options) {
  return {model, AdamWForms(model->parameters(), torch::optim::AdamWOptions(0.01)),
          [model](const Batch& rows) { return model->Loss(rows); }, std::move(options)};
}

/// Model, what is sharded. Losses, evaluations, parameters.
const RankTaskNamed kTwenty("trainer", [](const Launch& launch, const auto& words) {
  const auto model = SmallModel(words[0], launch.rank + 1);
  Trainer trainer = MakeTrainer(model, OptionsOf(*model, Join(launch), words[1]));
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    losses.push_back(trainer.Step(RowsOf(WholeBatch(words[0], step), launch)).loss);
  }
  losses.push_back(trainer.Evaluate(RowsOf(WholeBatch(words[0], 2), launch)));
  losses.push_back(trainer.Evaluate(RowsOf(WholeBatch(words[0], 3), launch)));
  return Findings{{"losses", at::tensor(losses)}};
});

Findings Alone(const std::string& task, std::vector<std::string> words) {
  const auto outcomes = RunRanks({.task = task, .size = 1, .words = std::move(words)});
  EXPECT_TRUE(outcomes[0].good()) << outcomes[0].error;
  return outcomes[0].findings;
}

TEST(TrainerOverRanks, EqualsOneRankOnTheWholeBatch) {
  for (const std::string model : {"mlp", "gpt"}) {
    const Findings right = Alone("trainer", {model, "none"});
    for (const std::string shard : {"none", "1", "2", "3"}) {
      for (const int size : {2, 4}) {
        // By day everything once: what is sharded is tested by itself.
        const bool by_day = model == "mlp" ? shard == "1" && size == 2
                                           : (shard != "1") && (size == 4) == (shard != "2");
        if (!IsNightly() && !by_day) continue;
        for (const RankOutcome& outcome :
             RunRanks({.task = "trainer", .size = size, .words = {model, shard}})) {
          ASSERT_TRUE(outcome.good()) << outcome.error;
          EXPECT_LT(RelativeError(outcome.findings.at("losses"), right.at("losses")), 1e-6)
              << model << " shard " << shard << " ranks " << size;
        }
      }
    }
  }
}

/// What is sharded, and how many steps. In each one of the ranks runs out of memory, at two
/// requests further on than in the last.
const RankTaskNamed kFailing("trainer runs out", [](const Launch& launch, const auto& words) {
  const auto model = SmallModel("gpt", 1);
  TrainerOptions options = OptionsOf(*model, Join(launch), words[0]);
  bool fails = false;
  int now = 0;
  CpuAllocator& memory = CpuAllocator::Installed();
  const auto loss = [&](const Batch& rows) {
    if (std::exchange(fails, false)) memory.FailAt(memory.requests() + now);
    return model->Loss(rows);
  };
  Trainer trainer(model, AdamWForms(model->parameters(), torch::optim::AdamWOptions(0.01)), loss,
                  options);
  std::vector<double> losses;
  std::int64_t retries = 0;
  for (int step = 0; step < std::stoi(words[1]); ++step) {
    now = step * 2;
    // Not while levers are chosen.
    fails = launch.size > 1 && step > 0 && step % launch.size == launch.rank;
    const StepReport report = trainer.Step(RowsOf(WholeBatch("gpt", 3 * step), launch));
    // Where the step was over before.
    memory.FailAt(-1);
    losses.push_back(report.loss);
    retries += report.retries;
  }
  return Findings{{"losses", at::tensor(losses)}, {"retries", at::tensor(retries)}};
});

TEST(TrainerOverRanks, OutOfMemoryOnOneRankChangesNothing) {
  const int most = Nightly(51, 15);
  const Findings right = Alone("trainer runs out", {"none", std::to_string(most)});
  for (const auto& [shard, steps] : {std::pair{"none", most}, {"3", Nightly(21, 9)}}) {
    const auto outcomes =
        RunRanks({.task = "trainer runs out", .size = 4, .words = {shard, std::to_string(steps)}});
    for (const RankOutcome& outcome : outcomes) EXPECT_TRUE(outcome.good()) << outcome.error;
    for (const RankOutcome& outcome : outcomes) {
      ASSERT_TRUE(outcome.good());
      EXPECT_EQ(outcome.findings.at("retries").item<std::int64_t>(), steps - 1);
      EXPECT_LT(RelativeError(outcome.findings.at("losses"), right.at("losses").slice(0, 0, steps)),
                1e-6);
    }
  }
}

/// Rank 1 has less room than the others, by a tensor that it holds.
const RankTaskNamed kLessRoom("trainer less room", [](const Launch& launch, const auto& words) {
  torch::manual_seed(1);
  const auto model = std::make_shared<Mlp>(MlpOptions{.inputs = 64, .hidden = 64, .classes = 5});
  TrainerOptions options{.ranks = Join(launch)};
  at::Tensor held;
  if (launch.rank == 1) held = at::zeros({std::stoll(words[0])}, at::kByte);
  options.budget = std::stoll(words[1]);
  Trainer trainer(
      model, std::make_shared<torch::optim::SGD>(model->parameters(), 0.1),
      [model](const Batch& rows) { return model->Loss(rows); }, options);
  torch::manual_seed(launch.rank + 10);
  const Batch batch{{at::randn({512, 64}), at::randint(5, {512})}};
  const StepReport report = trainer.Step(batch);
  return Findings{{"loss", at::tensor(report.loss)},
                  {"micro_batch", at::tensor(report.levers.micro_batch)},
                  {"peak", at::tensor(report.memory.peak_allocated)}};
});

TEST(TrainerOverRanks, EachRankHasLeversOfItsOwn) {
  const auto outcomes =
      RunRanks({.task = "trainer less room", .size = 2, .words = {"900000", "1200000"}});
  for (const RankOutcome& outcome : outcomes) ASSERT_TRUE(outcome.good()) << outcome.error;
  const auto rows = [&](int rank) {
    return outcomes[rank].findings.at("micro_batch").item<std::int64_t>();
  };
  EXPECT_LT(rows(1), rows(0));
  EXPECT_EQ(outcomes[0].findings.at("loss").item<double>(),
            outcomes[1].findings.at("loss").item<double>());
}

TEST(TrainerOverRanks, WhatDoesNotFitOnOneIsToldByAll) {
  const auto outcomes =
      RunRanks({.task = "trainer less room", .size = 2, .words = {"1000000", "1200000"}});
  EXPECT_NE(outcomes[1].error.find("budget"), std::string::npos) << outcomes[1].error;
  EXPECT_EQ(outcomes[0].error.find("on rank 1"), 0U) << outcomes[0].error;
}

/// In the third step rank 1 has no room for a row.
const RankTaskNamed kNoRoom("trainer no room", [](const Launch& launch, const auto& words) {
  const auto model = SmallModel("mlp", 1);
  TrainerOptions options = OptionsOf(*model, Join(launch), words[0]);
  int step = 0;
  Trainer trainer(
      model, std::make_shared<torch::optim::SGD>(model->parameters(), 0.1),
      [&](const Batch& rows) {
        TORCH_CHECK_WITH(OutOfMemoryError, launch.rank != 1 || step != 2, "no room");
        return model->Loss(rows);
      },
      options);
  std::vector<double> losses;
  std::int64_t refused = 0;
  for (; step < 5; ++step) {
    try {
      losses.push_back(trainer.Step(RowsOf(WholeBatch("mlp", 0), launch)).loss);
    } catch (const c10::OutOfMemoryError&) {
      ++refused;
    }
  }
  return Findings{{"losses", at::tensor(losses)}, {"refused", at::tensor(refused)}};
});

TEST(TrainerOverRanks, GoesOnAfterAStepThatDoesNotFitOnOne) {
  for (const std::string shard : {"none", "3"}) {
    const auto outcomes = RunRanks({.task = "trainer no room", .size = 2, .words = {shard}});
    for (const RankOutcome& outcome : outcomes) {
      ASSERT_TRUE(outcome.good()) << outcome.error;
      EXPECT_EQ(outcome.findings.at("refused").item<std::int64_t>(), 1);
      EXPECT_EQ(outcome.findings.at("losses").numel(), 4);
    }
    EXPECT_TRUE(outcomes[0].findings.at("losses").equal(outcomes[1].findings.at("losses")));
  }
}

/// Three rows for four ranks, and a metric of each row.
const RankTaskNamed kMetrics("trainer metrics", [](const Launch& launch, const auto& words) {
  const auto model = SmallModel("mlp", 1);
  Trainer* counts = nullptr;
  TrainerOptions options = OptionsOf(*model, Join(launch), words[0]);
  Trainer trainer(
      model, std::make_shared<torch::optim::SGD>(model->parameters(), 0.1),
      [&](const Batch& rows) {
        const double mean = rows.tensors[0].mean().item<double>();
        counts->metrics().Add("input", mean, static_cast<double>(rows.size()));
        return model->Loss(rows);
      },
      options);
  counts = &trainer;
  const Batch whole = WholeBatch("mlp", 2);
  trainer.Step(RowsOf(whole, launch));
  return Findings{{"found", at::tensor(trainer.MetricsOfAll().at("input"))},
                  {"right", whole.tensors[0].mean()}};
});

TEST(TrainerOverRanks, MetricsOfAllAreOfEachRowOnce) {
  for (const std::string shard : {"none", "3"}) {
    for (const RankOutcome& outcome :
         RunRanks({.task = "trainer metrics", .size = 4, .words = {shard}})) {
      ASSERT_TRUE(outcome.good()) << outcome.error;
      EXPECT_NEAR(outcome.findings.at("found").item<double>(),
                  outcome.findings.at("right").item<double>(), 1e-6);
    }
  }
}

/// Rank 1 throws in the third step.
const RankTaskNamed kThrows("trainer throws", [](const Launch& launch, const auto&) {
  const auto model = SmallModel("mlp", 1);
  int step = 0;
  Trainer trainer(
      model, std::make_shared<torch::optim::SGD>(model->parameters(), 0.1),
      [&](const Batch& rows) {
        TORCH_CHECK(launch.rank != 1 || step != 2, "this sample is odd");
        return model->Loss(rows);
      },
      TrainerOptions{.ranks = Join(launch)});
  for (; step < 4; ++step) trainer.Step(RowsOf(WholeBatch("mlp", 0), launch));
  return Findings{};
});

TEST(TrainerOverRanks, AnErrorOfOneIsToldByTheOthers) {
  const auto outcomes = RunRanks({.task = "trainer throws", .size = 3});
  EXPECT_EQ(outcomes[1].error.find("this sample is odd"), 0U) << outcomes[1].error;
  for (const int rank : {0, 2}) {
    EXPECT_NE(
        outcomes[rank].error.find("rank 1 stopped with an error, at: step 2 (this sample is odd"),
        std::string::npos)
        << outcomes[rank].error;
  }
}

/// Steps from the first word to the second, from a state if that is not 0; saved at the end.
const RankTaskNamed kInParts("trainer in parts", [](const Launch& launch, const auto& words) {
  const auto model = SmallModel("gpt", 1);
  Trainer trainer = MakeTrainer(model, OptionsOf(*model, Join(launch), words[3]));
  const fs::path path = words[0];
  const int begin = std::stoi(words[1]);
  std::vector<double> losses;
  if (begin > 0 && trainer.Load(path) != "so far") throw std::runtime_error("other words");
  for (int step = begin; step < std::stoi(words[2]); ++step) {
    losses.push_back(trainer.Step(RowsOf(WholeBatch("gpt", step), launch)).loss);
  }
  trainer.Save(path, "so far");
  return Findings{{"losses", at::tensor(losses)}};
});

TEST(TrainerOverRanks, GoesOnWithAnotherNumberOfRanks) {
  const fs::path path =
      fs::path(testing::TempDir()) / c10::str("trainer_ranks.", getpid(), ".state");
  const Findings right = Alone("trainer", {"gpt", "none"});
  for (const std::string shard : {"none", "3"}) {
    int begin = 0;
    for (const auto& [size, end] : {std::pair{4, kSteps / 3}, {3, 2 * kSteps / 3}, {2, kSteps}}) {
      const auto outcomes =
          RunRanks({.task = "trainer in parts",
                    .size = size,
                    .words = {path.string(), std::to_string(begin), std::to_string(end), shard}});
      for (const RankOutcome& outcome : outcomes) {
        ASSERT_TRUE(outcome.good()) << outcome.error;
        EXPECT_LT(
            RelativeError(outcome.findings.at("losses"), right.at("losses").slice(0, begin, end)),
            1e-6);
      }
      begin = end;
    }
  }
  const auto outcomes = RunRanks(
      {.task = "trainer in parts", .size = 2, .words = {"/no/such/folder/x", "0", "1", "none"}});
  EXPECT_NE(outcomes[0].error.find("/no/such/folder"), std::string::npos) << outcomes[0].error;
  EXPECT_EQ(outcomes[1].error.find("on rank 0 of 2: "), 0U) << outcomes[1].error;
}

}  // namespace
}  // namespace plimsoll::train::trainer_ranks_test

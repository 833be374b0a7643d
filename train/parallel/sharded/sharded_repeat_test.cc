// Steps of Sharded that end in the midst, and steps that are only tried.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "train/budget/budget.h"
#include "train/budget/cpu_allocator.h"
#include "train/parallel/ranks/rank_processes_for_tests.h"
#include "train/parallel/sharded/sharded.h"
#include "train/parallel/training_for_tests.h"

namespace plimsoll::train::sharded_repeat_test {
namespace {

const std::vector<Shard> kShards{Shard::kOptimizerState, Shard::kGradients, Shard::kParameters};
/// By day that in which most comes and goes.
const std::vector<Shard> kSomeShards = IsNightly() ? kShards : std::vector{Shard::kParameters};

/// A step of it: all but what the optimizer does.
at::Tensor AddGradients(Sharded& sharded, TrainModel& model, const Launch& launch, int step) {
  const Pieces pieces{.rows = 2, .weight = [&](const Batch& rows) { return model.Weight(rows); }};
  const Batch mine = RowsOf(WholeBatch("gpt", step), launch);
  const at::Tensor loss = sharded.AccumulateGradients(
      [&](const Batch& rows) { return model.Loss(rows); }, mine, pieces);
  sharded.ClipNorm(0.5);
  return loss;
}

/// Trains; `step` may run out of memory, and is repeated when `mend` has been called.
Findings Train(Ranks& ranks, Shard shard, int steps, const std::function<void(int)>& before,
               const std::function<void()>& mend) {
  const auto model = SmallModel("gpt", 1);
  Sharded sharded(*model, ranks, {.shard = shard, .group = kKiB});
  torch::optim::AdamW optimizer(sharded.parts(), torch::optim::AdamWOptions(0.01));
  std::vector<at::Tensor> losses;
  const Launch launch = ranks.launch();
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    before(step);
    try {
      losses.push_back(AddGradients(sharded, *model, launch, step));
    } catch (const std::exception&) {
      sharded.Abandon();
      EXPECT_EQ(sharded.gradient_bytes(), 0);
      mend();
      losses.push_back(AddGradients(sharded, *model, launch, step));
    }
    CpuAllocator::Installed().FailAt(-1);
    sharded.Step(optimizer);
  }
  const Sharded::Whole whole(sharded);
  return {{"losses", at::stack(losses)}, {"parameters", Flat(model->parameters())}};
}

/// In the next that many allocations one fails.
void FailAfter(std::int64_t allocations) {
  CpuAllocator& memory = CpuAllocator::Installed();
  memory.FailAt(memory.requests() + allocations);
}

TEST(Sharded, GoesOnAfterAnyAllocationFailed) {
  for (const Shard shard : kSomeShards) {
    const auto nothing = [] {};
    Ranks ranks;
    const Findings right = Train(
        ranks, shard, 3, [](int) {}, nothing);
    int failed = 0;
    for (std::int64_t at = 1; at < 3000; at += 23) {
      const auto before = [&](int step) {
        if (step == 1) FailAfter(at);
      };
      const int until_now = failed;
      const Findings found = Train(ranks, shard, 3, before, [&] { ++failed; });
      for (const auto& [name, value] : right) {
        EXPECT_TRUE(found.at(name).equal(value)) << name << " after allocation " << at;
      }
      if (failed == until_now) break;
    }
    EXPECT_GT(failed, 20) << "shard " << static_cast<int>(shard);
  }
}

/// One rank runs out of memory, the others lose it; all meet again and repeat the step. Words: the
/// shard, and which allocation fails.
const RankTaskNamed kRepeat("sharded repeat", [](const Launch& launch, const auto& words) {
  const auto shard = static_cast<Shard>(std::stoi(words[0]));
  const RanksOptions limits{.time_limit = kFaultLimit, .meeting_limit = kAmpleLimit};
  std::optional<Ranks> ranks(std::in_place, launch, limits);
  const auto before = [&](int step) {
    if (step == 1 && launch.rank == 2) FailAfter(std::stoi(words[1]));
  };
  bool repeated = false;
  const auto mend = [&] {
    repeated = true;
    CpuAllocator::Installed().FailAt(-1);
    ranks.reset();
    ranks.emplace(launch, limits);
  };
  Findings findings = Train(*ranks, shard, 4, before, mend);
  findings["repeated"] = at::tensor(repeated ? 1 : 0);
  return findings;
});

void ExpectRepeats(Shard shard, int allocation, const Findings& right) {
  const auto outcomes =
      RunRanks({.task = "sharded repeat",
                .size = 4,
                .words = {std::to_string(static_cast<int>(shard)), std::to_string(allocation)}});
  for (const RankOutcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.good()) << outcome.error << (outcome.late ? "too late" : "");
    EXPECT_TRUE(outcome.findings.at("repeated").item<int>() == 1);
    for (const auto& [name, value] : right) {
      EXPECT_LT(RelativeError(outcome.findings.at(name), value), 1e-6) << name;
    }
  }
}

TEST(Sharded, RepeatsAStepInWhichOneRankRanOut) {
  std::vector<std::function<void()>> cases;
  for (const Shard shard : kShards) {
    Ranks alone;
    const Findings right = Train(
        alone, shard, 4, [](int) {}, [] {});
    // In the forward, and with parameters that come and go in the backward too.
    const bool all = shard == Shard::kParameters;
    for (const int at : all ? std::vector{60, 110} : std::vector{60}) {
      cases.emplace_back([=] { ExpectRepeats(shard, at, right); });
    }
  }
  // The ranks wait for one that has left.
  SeveralAtOnce(cases, 4);
}

/// What a step takes, tried alone and together, and whether the trial left everything as it was.
const RankTaskNamed kTrial("sharded trial", [](const Launch& launch, const auto& words) {
  const auto shard = static_cast<Shard>(std::stoi(words[0]));
  Ranks ranks(launch);
  torch::manual_seed(1);
  const auto model = std::make_shared<Gpt>(
      GptOptions{.vocabulary = 64, .context = 32, .width = 64, .layers = 4, .heads = 2});
  Sharded sharded(*model, ranks, {.shard = shard});
  Budget budget(c10::kCPU, std::nullopt);
  const at::Tensor tokens = at::randint(64, {4, 32});
  const auto step = [&] {
    const PeakScope peak(budget);
    sharded.AccumulateGradients([&](const Batch& rows) { return model->Loss(rows); },
                                {{tokens, tokens}}, {.rows = 2});
    const auto taken = static_cast<double>(peak.figures().peak_allocated);
    for (const at::Tensor& part : sharded.parts()) part.mutable_grad().reset();
    return taken;
  };
  step();
  double alone_peak = 0;
  const Bytes before = budget.figures().allocated;
  if (launch.rank == 1) {
    const Sharded::Alone alone(sharded);
    alone_peak = step();
  }
  const Bytes left = budget.figures().allocated - before;
  // A thread of gloo's may let go of what it has summed a moment late: that only adds.
  const double together = std::min({step(), step(), step()});
  return Findings{{"alone", at::tensor(alone_peak)},
                  {"left", at::tensor(left)},
                  {"together", at::tensor(together)}};
});

TEST(Sharded, AStepTriedAloneTakesWhatItTakesTogether) {
  for (const Shard shard : kShards) {
    const std::string number = std::to_string(static_cast<int>(shard));
    const auto outcomes = RunRanks({.task = "sharded trial", .size = 4, .words = {number}});
    for (const RankOutcome& outcome : outcomes) ASSERT_TRUE(outcome.good()) << outcome.error;
    const Findings& findings = outcomes[1].findings;
    const double alone = findings.at("alone").item<double>();
    const double together = findings.at("together").item<double>();
    EXPECT_NEAR(alone / together, 1, 0.01)
        << "shard " << number << ": " << alone << ", " << together;
    // Gradients that are kept between steps are dropped.
    EXPECT_LE(findings.at("left").item<std::int64_t>(), 0);
  }
}

}  // namespace
}  // namespace plimsoll::train::sharded_repeat_test

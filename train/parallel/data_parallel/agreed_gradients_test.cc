#include "train/parallel/data_parallel/agreed_gradients.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <torch/torch.h>

#include <functional>
#include <thread>
#include <utility>

#include "train/budget/cpu_allocator.h"
#include "train/parallel/ranks/rank_processes_for_tests.h"
#include "train/parallel/training_for_tests.h"

namespace plimsoll::train::agreed_gradients_test {
namespace {

// Trainer's test goes further, by the same way.
const int kFailures = Nightly(12, 6);

/// Each step one of the ranks runs out of memory, at one allocation further on than the last.
const RankTaskNamed kOutOfMemory("out of memory", [](const Launch& launch, const auto&) {
  Ranks ranks(launch, {.time_limit = kAmpleLimit});
  const auto model = SmallModel("gpt", launch.rank + 1);
  DataParallel parallel(*model, ranks);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  const Pieces pieces{.rows = 8, .weight = [&](const Batch& rows) { return model->Weight(rows); }};
  CpuAllocator& memory = CpuAllocator::Installed();
  std::vector<at::Tensor> losses;
  std::int64_t repeats = 0;
  for (int step = 0; step < kFailures; ++step) {
    bool fails = step % launch.size == launch.rank;
    const auto loss = [&](const Batch& rows) {
      if (std::exchange(fails, false)) memory.FailAt(memory.requests() + 4 * step);
      return model->Loss(rows);
    };
    // Always 8 rows, so that each rank has some.
    const Batch mine = RowsOf(WholeBatch("gpt", 3 * step), launch);
    const AgreedGradients agreed =
        AccumulateInAgreement(*model, ranks, parallel, loss, mine, pieces);
    losses.push_back(agreed.loss);
    repeats += agreed.repeats;
    optimizer.step();
  }
  return Findings{{"losses", at::stack(losses)},
                  {"parameters", Flat(model->parameters())},
                  {"repeats", at::tensor(repeats)}};
});

TEST(Agreement, OutOfMemoryOnOneRankChangesNothing) {
  const auto model = SmallModel("gpt", 1);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  std::vector<at::Tensor> losses;
  for (int step = 0; step < kFailures; ++step) {
    optimizer.zero_grad();
    losses.push_back(model->Loss(WholeBatch("gpt", 3 * step)));
    losses.back().backward();
    optimizer.step();
  }
  const auto outcomes = RunRanks({.task = "out of memory", .size = 4});
  for (const RankOutcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.good()) << outcome.error;
    EXPECT_EQ(outcome.findings.at("repeats").item<std::int64_t>(), kFailures);
    EXPECT_LT(RelativeError(outcome.findings.at("losses"), at::stack(losses).detach()), 1e-6);
    EXPECT_LT(RelativeError(outcome.findings.at("parameters"), Flat(model->parameters())), 1e-6);
  }
}

/// Rank 1 cannot hold more rows than the word says; 0: not even one.
const RankTaskNamed kLittleRoom("little room", [](const Launch& launch, const auto& words) {
  Ranks ranks(launch, {.time_limit = kAmpleLimit});
  const auto model = SmallModel("mlp", 1);
  DataParallel parallel(*model, ranks);
  const std::int64_t most = std::stoll(words[0]);
  const auto loss = [&](const Batch& rows) {
    TORCH_CHECK_WITH(OutOfMemoryError, launch.rank != 1 || rows.size() <= most, "no room");
    return model->Loss(rows);
  };
  const Batch mine{{at::randn({9, 12}), at::randint(5, {9})}};
  const AgreedGradients agreed =
      AccumulateInAgreement(*model, ranks, parallel, loss, mine, {.rows = 100});
  return Findings{{"rows", at::tensor(agreed.rows)}};
});

TEST(Agreement, OneAloneGivesWayToo) {
  Ranks alone;
  const auto model = SmallModel("mlp", 1);
  DataParallel parallel(*model, alone);
  const auto loss = [&](const Batch& rows) {
    TORCH_CHECK_WITH(OutOfMemoryError, rows.size() <= 2, "no room");
    return model->Loss(rows);
  };
  const Batch batch = WholeBatch("mlp", 0);
  const auto agreed = AccumulateInAgreement(*model, alone, parallel, loss, batch, {.rows = 8});
  EXPECT_EQ(agreed.rows, 2);
  EXPECT_EQ(agreed.repeats, 2);
  EXPECT_LT(RelativeError(agreed.loss, model->Loss(batch).detach()), 1e-6);
}

TEST(Agreement, AllTakeTheRowsThatFitEverywhere) {
  for (const RankOutcome& outcome : RunRanks({.task = "little room", .size = 2, .words = {"3"}})) {
    ASSERT_TRUE(outcome.good()) << outcome.error;
    EXPECT_EQ(outcome.findings.at("rows").item<std::int64_t>(), 2);
  }
  for (const RankOutcome& outcome : RunRanks({.task = "little room", .size = 2, .words = {"0"}})) {
    EXPECT_EQ(outcome.error.find("rank 1 of 2 ran out of memory with one row at a time"), 0U)
        << outcome.error;
  }
}

/// Rank 2 is killed while it computes its gradients, or throws, or ends there.
const RankTaskNamed kFault("fault in a step", [](const Launch& launch, const auto& words) {
  Ranks ranks(launch, {.time_limit = kFaultLimit});
  const auto model = SmallModel("mlp", 1);
  DataParallel parallel(*model, ranks);
  for (int step = 0; step < 4; ++step) {
    ranks.Doing("step " + std::to_string(step));
    const auto loss = [&](const Batch& rows) {
      if (launch.rank == 2 && step == 2) {
        std::this_thread::sleep_for(kUntilSaid);
        if (words[0] == "killed") raise(SIGKILL);
        throw std::runtime_error("an error of its own");
      }
      return model->Loss(rows);
    };
    const Batch mine = RowsOf(WholeBatch("mlp", 0), launch);
    if (words[1] == "agreed") {
      AccumulateInAgreement(*model, ranks, parallel, loss, mine, {.rows = 100});
    } else {
      parallel.AccumulateGradients(loss, mine, {.rows = 100});
    }
  }
  return Findings{};
});

void ExpectNamed(const std::string& how, const std::string& way) {
  const auto outcomes = RunRanks({.task = "fault in a step", .size = 3, .words = {how, way}});
  for (const int rank : {0, 1}) {
    const std::string said = how == "killed" ? "rank 2 does not answer any more; it was at: step 2"
                             : way == "agreed"
                                 ? "rank 2 stopped with an error, at: step 2 (an error of its own)"
                                 : "rank 2 has left; it was at: step 2";
    EXPECT_FALSE(outcomes[rank].late);
    EXPECT_NE(outcomes[rank].error.find(said), std::string::npos) << outcomes[rank].error;
  }
  if (how == "throws") {
    EXPECT_EQ(outcomes[2].error, "an error of its own");
  }
}

TEST(Agreement, ARankThatDiesInAStepIsNamed) {
  std::vector<std::function<void()>> cases;
  for (const std::string how : {"killed", "throws"}) {
    for (const std::string way : {"agreed", "overlapped"}) {
      cases.emplace_back([=] { ExpectNamed(how, way); });
    }
  }
  SeveralAtOnce(cases, 4);
}

}  // namespace
}  // namespace plimsoll::train::agreed_gradients_test

#include "train/parallel/ranks/ranks.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <torch/torch.h>

#include <functional>
#include <thread>

#include "train/parallel/ranks/rank_processes_for_tests.h"

namespace plimsoll::train::ranks_test {
namespace {

using std::chrono::milliseconds;

const RankTaskNamed kCollectives("collectives", [](const Launch& launch, const auto&) {
  // A process may have one group after the other.
  Ranks(launch).Barrier();
  Ranks ranks(launch);
  Findings findings;
  const double mine = launch.rank + 1;
  findings["number"] = at::tensor(ranks.Sum(mine));
  at::Tensor sum = at::full({3}, mine);
  ranks.Sum(sum);
  findings["sum"] = sum;
  at::Tensor least = at::full({1}, mine);
  ranks.Least(least);
  findings["least"] = least;
  const std::vector<at::Tensor> sent{at::full({2}, mine), at::full({5}, launch.rank, at::kLong)};
  ranks.Broadcast(sent, 1);
  findings["sent"] = sent[0];
  findings["sent numbers"] = sent[1];
  // The part lies where it belongs.
  at::Tensor whole = at::zeros({2L * launch.size});
  const at::Tensor part = whole.narrow(0, 2L * launch.rank, 2).fill_(mine);
  ranks.Gather(whole, part);
  findings["whole"] = whole;
  at::Tensor summed = at::zeros({2});
  ranks.SumParts(summed, at::arange(2 * launch.size) * mine);
  findings["part"] = summed;
  ranks.Barrier();
  return findings;
});

TEST(Ranks, DoCollectivesTogether) {
  for (const bool kept : {true, false}) {
    const auto outcomes = RunRanks({.task = "collectives", .size = 3, .store_is_kept = kept});
    for (int rank = 0; rank < 3; ++rank) {
      ASSERT_TRUE(outcomes[rank].good()) << outcomes[rank].error;
      const Findings& found = outcomes[rank].findings;
      EXPECT_EQ(found.at("number").item<double>(), 6);
      EXPECT_TRUE(found.at("sum").equal(at::full({3}, 6.0)));
      EXPECT_EQ(found.at("least").item<double>(), 1);
      EXPECT_TRUE(found.at("sent").equal(at::full({2}, 2.0)));
      EXPECT_TRUE(found.at("sent numbers").equal(at::full({5}, 1, at::kLong)));
      EXPECT_TRUE(found.at("whole").equal(at::tensor({1.F, 1.F, 2.F, 2.F, 3.F, 3.F})));
      EXPECT_TRUE(found.at("part").equal(at::arange(2) * 6 + 12 * rank));
    }
  }
}

TEST(Ranks, OneAloneNeedsNothing) {
  Ranks ranks;
  EXPECT_TRUE(ranks.alone());
  EXPECT_EQ(ranks.Sum(3.0), 3.0);
  at::Tensor whole = at::zeros({2});
  ranks.Gather(whole, at::ones({2}));
  EXPECT_TRUE(whole.equal(at::ones({2})));
  ranks.Barrier();
  EXPECT_TRUE(Ranks(Launch{}).alone());
}

TEST(Ranks, OptionsThatCannotBeAreRefused) {
  EXPECT_THROW(Ranks({.rank = 2, .size = 2}), c10::Error);
  EXPECT_THROW(Ranks({.rank = 0, .size = 0}), c10::Error);
  EXPECT_THROW(Ranks({.rank = 0, .size = 2}, {.time_limit = milliseconds(1)}), c10::Error);
}

TEST(Ranks, AnAddressWhereNobodyIsIsNamed) {
  Launch launch{.rank = 1, .size = 2};
  // Reserved, and nothing listens there.
  launch.port = 1;
  try {
    const Ranks ranks(launch, {.meeting_limit = milliseconds(200)});
    FAIL() << "there is nobody";
  } catch (const RankError& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.find("rank 1 of 2: cannot reach the store at 127.0.0.1 port 1 "), 0U) << text;
    EXPECT_NE(text.find("MASTER_PORT"), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
}

/// The words: what the odd rank does, and where (0: it never comes; 1: before the third sum).
const RankTaskNamed kFault("fault", [](const Launch& launch, const auto& words) -> Findings {
  const std::string& fault = words[0];
  const bool odd = launch.rank == std::stoi(words[1]);
  if (odd && fault == "absent") return {};
  Ranks ranks(launch, {.time_limit = kFaultLimit, .meeting_limit = kFaultLimit});
  for (int step = 0; step < 5; ++step) {
    ranks.Doing("step " + std::to_string(step));
    if (odd && step == 2) {
      std::this_thread::sleep_for(kUntilSaid);
      if (fault == "killed") raise(SIGKILL);
      if (fault == "stopped") raise(SIGSTOP);
      if (fault == "throws") throw std::runtime_error("an error of its own");
      // Until it is killed.
      if (fault == "stalls") std::this_thread::sleep_for(kAmpleLimit);
    }
    ranks.Sum(1.0);
  }
  return {};
});

struct Fault {
  std::string name;
  int rank;
  /// What the others say of it.
  std::string said;
};

void ExpectNamed(const Fault& fault, bool kept) {
  SCOPED_TRACE(fault.name + ", rank " + std::to_string(fault.rank));
  const auto outcomes = RunRanks({.task = "fault",
                                  .size = 3,
                                  .words = {fault.name, std::to_string(fault.rank)},
                                  .store_is_kept = kept,
                                  .not_awaited = fault.rank});
  for (int rank = 0; rank < 3; ++rank) {
    if (rank == fault.rank) continue;
    EXPECT_FALSE(outcomes[rank].late);
    EXPECT_EQ(outcomes[rank].signal, 0);
    const std::string& error = outcomes[rank].error;
    EXPECT_EQ(error.find("rank " + std::to_string(rank) + " of 3: "), 0U) << error;
    EXPECT_NE(error.find(fault.said), std::string::npos) << error;
  }
}

TEST(Ranks, AFaultOfOneIsToldByTheOthers) {
  struct Case {
    Fault fault;
    /// By the launcher; else by rank 0.
    bool store_is_kept;
  };
  const std::string limit = std::to_string(kFaultLimit.count()) + " s";
  // The first ones take the time limit.
  const std::vector<Case> all{
      {{"stopped", 2, "rank 2 does not answer any more; it was at: step 2"}, true},
      {{"stalls", 0, "rank 0 is behind the others, at: step 2"}, true},
      {{"stopped", 0, "rank 0, which keeps the store of all ranks, does not answer"}, false},
      {{"absent", 1, "rank 1 did not come within " + limit}, true},
      // And its own error of another does not take the store away from under the rest.
      {{"absent", 2, "rank 2 did not come within " + limit}, false},
      {{"killed", 1, "rank 1 does not answer any more; it was at: step 2"}, true},
      {{"throws", 1, "rank 1 has left; it was at: step 2"}, true},
      {{"killed", 0, "rank 0, which keeps the store of all ranks, does not answer"}, false},
      {{"throws", 0, "rank 0 has left; it was at: step 2"}, false}};
  std::vector<std::function<void()>> cases;
  for (const Case& one : all) {
    cases.emplace_back([&one] { ExpectNamed(one.fault, one.store_is_kept); });
  }
  SeveralAtOnce(cases, 6);
}

}  // namespace
}  // namespace plimsoll::train::ranks_test

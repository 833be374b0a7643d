#include "train/levers.h"

#include <gtest/gtest.h>

namespace plimsoll::train {
namespace {

/// A model whose memory and time are known: each row takes `bytes`, less when checkpointed.
struct Machine {
  double room = 0;
  int trials = 0;

  std::optional<double> operator()(const Levers& levers) {
    ++trials;
    const std::string policy = levers.checkpoint.ToString();
    const double share = policy == "none" ? 1.0 : policy == "all" ? 0.2 : 0.6;
    const double cost = policy == "none" ? 1.0 : policy == "all" ? 1.33 : 1.17;
    const auto rows = static_cast<double>(levers.micro_batch);
    if (rows * share * (levers.offload ? 0.3 : 1) > room) return std::nullopt;
    return (cost + (levers.offload ? 0.5 : 0)) * (1 + 4 / rows);
  }
};

TEST(Levers, TakesTheWholeBatchWhereItFits) {
  Machine machine{.room = 100};
  const auto levers = ChooseLevers({.batch = 64, .blocks = 8}, std::ref(machine));
  EXPECT_EQ(levers->ToString(), "micro-batch 64, checkpoint none");
  EXPECT_EQ(machine.trials, 1);
}

TEST(Levers, WeighsSmallPiecesAgainstRecomputing) {
  // 32 rows at a time without checkpoints are quicker than 64 with.
  Machine roomy{.room = 40};
  EXPECT_EQ(ChooseLevers({.batch = 64, .blocks = 8}, std::ref(roomy))->ToString(),
            "micro-batch 32, checkpoint none");
  // Two at a time are slower than 16 with checkpoints.
  Machine tight{.room = 3.5};
  EXPECT_EQ(ChooseLevers({.batch = 64, .blocks = 8}, std::ref(tight))->ToString(),
            "micro-batch 16, checkpoint all");
}

TEST(Levers, KeepsTheBatchTogetherWhereItMust) {
  Machine machine{.room = 20};
  EXPECT_EQ(
      ChooseLevers({.batch = 64, .may_split = false, .blocks = 8}, std::ref(machine))->ToString(),
      "micro-batch 64, checkpoint all");
  machine.room = 5;
  EXPECT_EQ(
      ChooseLevers({.batch = 64, .may_split = false, .blocks = 8}, std::ref(machine))->ToString(),
      "micro-batch 64, checkpoint all, offload");
  machine.room = 1;
  EXPECT_FALSE(ChooseLevers({.batch = 64, .may_split = false, .blocks = 8}, std::ref(machine)));
}

TEST(Levers, GivesWayStepByStep) {
  const LeverLimits limits{.batch = 3, .blocks = 2};
  std::vector<std::string> seen;
  for (std::optional<Levers> levers = Levers{.micro_batch = 3}; levers;
       levers = LessThan(*levers, limits)) {
    seen.push_back(levers->ToString());
  }
  EXPECT_EQ(seen, (std::vector<std::string>{
                      "micro-batch 3, checkpoint none", "micro-batch 2, checkpoint none",
                      "micro-batch 1, checkpoint none", "micro-batch 1, checkpoint all",
                      "micro-batch 1, checkpoint all, offload"}));
}

TEST(CheckpointPolicy, IsSpelledAndGroups) {
  for (const char* text : {"none", "all", "sqrt", "every:4", "plan:0,2,5"}) {
    EXPECT_EQ(CheckpointPolicy::Parse(text).ToString(), text);
  }
  for (const char* text : {"", "some", "every:", "every:0", "every:x", "plan:1,a"}) {
    EXPECT_THROW(CheckpointPolicy::Parse(text), c10::Error) << text;
  }
  EXPECT_EQ(CheckpointPolicy::SquareRoot().Groups(9).size(), 3u);
  EXPECT_EQ(CheckpointPolicy::Every(4).Groups(9).back().end, 9);
  EXPECT_TRUE(CheckpointPolicy::Plan({1}).Groups(3)[1].checkpointed);
  EXPECT_FALSE(CheckpointPolicy::Plan({1}).Groups(3)[2].checkpointed);
}

}  // namespace
}  // namespace plimsoll::train

#include "train/planning/levers.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace plimsoll::train::levers_test {
namespace {

TEST(MicroBatches, ArePiecesThatAreAsEqualAsTheyCanBe) {
  EXPECT_EQ(MicroBatches({.batch = 32}), (std::vector<std::int64_t>{32, 16, 11, 8, 6, 4, 3, 2, 1}));
  EXPECT_EQ(MicroBatches({.batch = 5}), (std::vector<std::int64_t>{5, 3, 2, 1}));
  EXPECT_EQ(MicroBatches({.batch = 1}), std::vector<std::int64_t>{1});
  EXPECT_EQ(MicroBatches({.batch = 32, .micro_batch = 64}), std::vector<std::int64_t>{32});
  EXPECT_EQ(MicroBatches({.batch = 32, .may_split = false}), std::vector<std::int64_t>{32});
}

TEST(CheckpointPolicy, ReadsWhatItWrites) {
  for (const char* text : {"none", "all", "every:3", "sqrt", "plan:0", "plan:0,2-4,7"}) {
    EXPECT_EQ(CheckpointPolicy::Parse(text).ToString(), text);
  }
  for (const char* text : {"some", "every:0", "every:x", "plan:", "plan:1,1", "plan:1-3,2",
                           "plan:3-1", "plan:-1", "plan:1,", "plan:2147483647"}) {
    EXPECT_THROW(CheckpointPolicy::Parse(text), c10::Error) << text;
  }
}

std::string GroupsOf(const char* policy, int blocks) {
  std::string text;
  for (const auto& group : CheckpointPolicy::Parse(policy).Groups(blocks)) {
    text += (group.checkpointed ? "[" : "(") + std::to_string(group.begin) + "," +
            std::to_string(group.end) + (group.checkpointed ? "]" : ")");
  }
  return text;
}

TEST(CheckpointPolicy, GroupsCoverAllBlocks) {
  EXPECT_EQ(GroupsOf("none", 2), "(0,1)(1,2)");
  EXPECT_EQ(GroupsOf("all", 2), "[0,1][1,2]");
  EXPECT_EQ(GroupsOf("every:2", 5), "[0,2][2,4][4,5]");
  EXPECT_EQ(GroupsOf("sqrt", 9), "[0,3][3,6][6,9]");
  EXPECT_EQ(GroupsOf("plan:1-2,4", 5), "(0,1)[1,3](3,4)[4,5]");
  EXPECT_EQ(GroupsOf("plan:3-9", 5), "(0,1)(1,2)(2,3)[3,5]");
}

TEST(CheckpointPolicy, HasPartsForPartsOfAModel) {
  const auto policy = CheckpointPolicy::Parse("plan:1-4,6");
  EXPECT_EQ(policy.Part(0, 3).ToString(), "plan:1-2");
  EXPECT_EQ(policy.Part(3, 4).ToString(), "plan:0-1,3");
  EXPECT_EQ(policy.Part(7, 2).ToString(), "none");
  EXPECT_EQ(CheckpointPolicy::All().Part(3, 4).ToString(), "all");
}

}  // namespace
}  // namespace plimsoll::train::levers_test

#include "recompute/checkpoint_sets.h"

#include <gtest/gtest.h>

namespace plimsoll::checkpoint_sets_test {
namespace {

CheckpointBlock Block(double us, std::vector<Bytes> changes, std::vector<std::size_t> conflicts) {
  CheckpointBlock block{.module = "", .us = us, .changes = {}, .conflicts = std::move(conflicts)};
  for (std::size_t t = 0; t < changes.size(); ++t) {
    block.changes.push_back({.begin = t, .end = t + 1, .bytes = changes[t]});
  }
  return block;
}

/// The first saves most for its time, but rises as high as before when it is computed again, and is
/// in the way of the two that it is made of.
CheckpointModel Corner() {
  return {.plain = {100, 60},
          .blocks = {Block(10, {-60, 0}, {1, 2}), Block(8, {-30, -20}, {0}),
                     Block(8, {-30, -20}, {0})}};
}

TEST(CheckpointSets, GetOutOfACorner) {
  const CheckpointSets sets(Corner());
  EXPECT_EQ(sets.Cheapest(50), (BlockSet{1, 2}));
  EXPECT_EQ(sets.PeakOf(sets.Smallest()), 40);
}

TEST(CheckpointSets, TakeTheCheaperWhereItIsEnough) {
  EXPECT_EQ(CheckpointSets(Corner()).Cheapest(60), (BlockSet{0}));
}

TEST(CheckpointSets, FindNothingWhereThereIsNothing) {
  EXPECT_EQ(CheckpointSets(Corner()).Cheapest(39), std::nullopt);
  EXPECT_EQ(CheckpointSets(CheckpointModel{.plain = {5}, .blocks = {}}).Cheapest(4), std::nullopt);
}

}  // namespace
}  // namespace plimsoll::checkpoint_sets_test

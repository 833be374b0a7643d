#include "job/answer/batching.h"

#include <gtest/gtest.h>

namespace plimsoll {
namespace {

EpochFacts FourBatches() {
  // Eight samples, two a batch: 10 and 90, 20 and 80, 30 and 70, 40 and 60.
  EpochFacts epoch{.batches = 4, .complete = true};
  for (const std::int64_t longest : {90, 80, 70, 60}) {
    epoch.kinds.push_back({.count = 1, .shapes = {{2, longest}, {2}}});
  }
  for (const std::int64_t length : {10, 20, 30, 40, 60, 70, 80, 90}) {
    epoch.lengths.push_back({.length = length, .samples = 1});
  }
  return epoch;
}

TEST(Batching, PaddingIsCountedAndGoesWithOrder) {
  const Batchings found = FindBatchings(FourBatches());
  EXPECT_EQ(found.tokens, 400);
  ASSERT_EQ(found.ways.size(), 5u);
  EXPECT_EQ(found.ways[0].tokens, 2 * (90 + 80 + 70 + 60));
  EXPECT_EQ(found.ways[0].Heaviest(), 180);
  // 90 and 80, 70 and 60, 40 and 30, 20 and 10.
  EXPECT_EQ(found.ways[1].tokens, 2 * (90 + 70 + 40 + 20));
  EXPECT_EQ(found.ways[1].steps, 4);
  EXPECT_EQ(found.ways[2].tokens, 2 * (128 + 128 + 64 + 64));
  // 150 tokens a batch: 90 and nothing, 80, 70 and 60, 40 and 30 and 20, 10.
  EXPECT_EQ(found.ways[3].Heaviest() <= 150, true);
  EXPECT_EQ(found.ways[4].tokens, 5 * 90);
}

TEST(Batching, WithoutLengthsThereIsNothingToCompare) {
  EpochFacts epoch = FourBatches();
  epoch.lengths.clear();
  EXPECT_TRUE(FindBatchings(epoch).ways.empty());
  EXPECT_TRUE(FindBatchings({}).ways.empty());
}

}  // namespace
}  // namespace plimsoll

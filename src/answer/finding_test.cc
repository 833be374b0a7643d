#include "answer/finding.h"

#include <gtest/gtest.h>

namespace plimsoll::finding_test {
namespace {

Finding Of(std::optional<int> rank, FindingId id, Severity severity = Severity::kHigh) {
  return {.id = id,
          .severity = severity,
          .rank = rank,
          .title = "found",
          .remedies = {{.change = "do this", .lever = Lever::kSmallerBatch}}};
}

TEST(MergeFindings, WhatAllRanksShowIsToldOnce) {
  const auto merged =
      MergeFindings({Of(0, FindingId::kLeak), Of(1, FindingId::kLeak), Of(2, FindingId::kLeak)}, 3);
  ASSERT_EQ(merged.size(), 1u);
  EXPECT_EQ(merged[0].rank, std::nullopt);
  EXPECT_EQ(merged[0].evidence.back(), "on all 3 ranks; the figures are those of rank 0");
}

TEST(MergeFindings, WhatSomeShowNamesThem) {
  const auto merged =
      MergeFindings({Of(4, FindingId::kLeak), Of(7, FindingId::kLeak), Of(5, FindingId::kLeak)}, 9);
  ASSERT_EQ(merged.size(), 1u);
  EXPECT_EQ(merged[0].rank, 4);
  EXPECT_EQ(merged[0].evidence.back(), "the same on ranks 5 and 7");
}

TEST(MergeFindings, OtherGravityIsAnotherFinding) {
  const auto merged = MergeFindings(
      {Of(0, FindingId::kLimit, Severity::kMedium), Of(1, FindingId::kLimit, Severity::kHigh)}, 2);
  ASSERT_EQ(merged.size(), 2u);
  EXPECT_EQ(merged[0].rank, 1);
  // The remedy is told where it weighs most.
  EXPECT_EQ(merged[0].remedies.size(), 1u);
  EXPECT_TRUE(merged[1].remedies.empty());
}

TEST(MergeFindings, DevicesOfOneProcessKeepTheirOwn) {
  EXPECT_EQ(MergeFindings({Of({}, FindingId::kLeak), Of({}, FindingId::kLeak)}, 2).size(), 2u);
}

TEST(MergeFindings, OfManyOddRanksAFewAreTold) {
  std::vector<Finding> odd;
  for (int rank = 0; rank < 7; ++rank) odd.push_back(Of(rank, FindingId::kRankImbalance));
  const auto merged = MergeFindings(odd, 7);
  ASSERT_EQ(merged.size(), 4u);
  EXPECT_EQ(merged[3].evidence.back(), "and 3 more ranks are odd");
}

}  // namespace
}  // namespace plimsoll::finding_test

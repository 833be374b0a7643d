#include "diagnose/ranks.h"

#include <gtest/gtest.h>

#include "diagnose/diff.h"

namespace plimsoll::ranks_test {
namespace {

TEST(Ranks, AreTakenFromFileNames) {
  EXPECT_EQ(RankFromName("/runs/ddp.rank3.pickle.xz"), 3);
  EXPECT_EQ(RankFromName("snapshot_rank_12.pkl"), 12);
  EXPECT_EQ(RankFromName("Rank-7.pickle"), 7);
  EXPECT_EQ(RankFromName("/rank5/snapshot.pickle"), std::nullopt) << "a folder is no file";
  EXPECT_EQ(RankFromName("ranking.pickle"), std::nullopt);
  EXPECT_EQ(RankFromName("rank99999999999.pickle"), std::nullopt);
}

RankReport Rank(int number, Bytes activations) {
  RankReport r;
  r.rank = number;
  r.file = "r" + std::to_string(number);
  r.peaks.emplace();
  (*r.peaks)[static_cast<std::size_t>(Category::kActivations)] = activations;
  r.peak_allocated = 2 * kGiB + activations;
  r.peak_reserved = *r.peak_allocated;
  r.holders = {{.where = "train.py:9 in step",
                .category = Category::kActivations,
                .bytes = activations,
                .count = 4,
                .module = {},
                .stack = {}}};
  r.account = {{.what = AccountItem::kActivations, .bytes = activations, .because = {}}};
  return r;
}

TEST(Ranks, OfAThousandTheOddOneIsNamed) {
  std::vector<RankReport> ranks;
  for (int i = 0; i < 1000; ++i) ranks.push_back(Rank(i, kGiB + i % 7 * kMiB));
  std::string even;
  EXPECT_TRUE(CompareRanks(ranks, even).empty());
  EXPECT_TRUE(even.starts_with("The 1000 ranks are even")) << even;
  ranks[613] = Rank(613, 3 * kGiB);
  const std::vector<Finding> odd = CompareRanks(ranks, even);
  ASSERT_EQ(odd.size(), 1u);
  EXPECT_EQ(odd[0].rank, 613);
  EXPECT_EQ(odd[0].severity, Severity::kHigh);
}

TEST(Ranks, AScatterIsNoOddRank) {
  // Every rank has another length of data: none is odd among them.
  std::vector<RankReport> ranks;
  for (int i = 0; i < 8; ++i) ranks.push_back(Rank(i, kGiB + i * 100 * kMiB));
  std::string even;
  EXPECT_TRUE(CompareRanks(ranks, even).empty());
  EXPECT_TRUE(even.starts_with("None of the 8 ranks is odd by itself")) << even;
}

TEST(Diff, ShowsTheSamePlaceGrown) {
  const Result<Difference> d = Compare(Rank(0, kGiB), Rank(0, 8 * kGiB));
  ASSERT_TRUE(d.ok());
  EXPECT_EQ(d->allocated.growth(), 7 * kGiB);
  ASSERT_EQ(d->holders.size(), 1u);
  EXPECT_EQ(d->holders[0].growth(), 7 * kGiB);
}

TEST(Diff, FollowsALineThatMoved) {
  RankReport after = Rank(0, kGiB + kMiB);
  after.holders[0].where = "train.py:12 in step";
  const Result<Difference> d = Compare(Rank(0, kGiB), after);
  ASSERT_EQ(d->holders.size(), 1u) << "one place, not one gone and one new";
  EXPECT_EQ(d->holders[0].where, "train.py:12 in step");
  EXPECT_EQ(d->holders[0].growth(), kMiB);
}

TEST(Diff, RefusesWhatIsNoTrace) {
  RankReport text;
  text.file = "train.log";
  EXPECT_FALSE(Compare(text, Rank(0, kGiB)).ok());
}

}  // namespace
}  // namespace plimsoll::ranks_test

#include <gtest/gtest.h>

#include <algorithm>

#include "diagnose/error_texts/messages.h"

namespace plimsoll::summaries_test {
namespace {

const Finding* Find(const Explanation& e, std::string_view id) {
  const auto at = std::find_if(e.findings.begin(), e.findings.end(),
                               [&](const Finding& f) { return FindingName(f.id) == id; });
  return at == e.findings.end() ? nullptr : &*at;
}

Bytes Line(const RankReport& rank, std::string_view what) {
  for (const AccountLine& line : rank.account) {
    if (AccountItemName(line.what) == what) return line.bytes;
  }
  return -1;
}

Bytes Total(const RankReport& rank) {
  Bytes total = 0;
  for (const AccountLine& line : rank.account) total += line.bytes;
  return total;
}

MemorySummary Table(Bytes allocated, Bytes reserved, std::int64_t ooms) {
  MemorySummary s;
  s.device = 2;
  s.ooms = ooms;
  s.rows = {{.metric = "Allocated memory",
             .pool = "",
             .current = allocated / 2,
             .peak = allocated,
             .total_allocated = 0,
             .total_freed = 0},
            {.metric = "Requested memory",
             .pool = "",
             .current = 0,
             .peak = allocated - kMiB,
             .total_allocated = 0,
             .total_freed = 0},
            {.metric = "GPU reserved memory",
             .pool = "",
             .current = reserved,
             .peak = reserved,
             .total_allocated = 0,
             .total_freed = 0}};
  return s;
}

TEST(ExplainSummaries, PeaksAndAccount) {
  Recording recording;
  recording.summaries = {Table(20 * kGiB, 21 * kGiB, 1)};
  const Explanation e = ExplainSummaries(recording);
  ASSERT_EQ(e.ranks.size(), 1u);
  EXPECT_EQ(e.ranks[0].device, 2);
  EXPECT_EQ(e.ranks[0].peak_allocated, 20 * kGiB);
  EXPECT_EQ(e.ranks[0].peak_reserved, 21 * kGiB);
  EXPECT_EQ(Total(e.ranks[0]), 21 * kGiB);
  EXPECT_EQ(Line(e.ranks[0], "rounding"), kMiB);
  EXPECT_NE(Find(e, "capacity"), nullptr);
  EXPECT_FALSE(e.verdict.empty());
}

TEST(ExplainSummaries, LooseReservation) {
  Recording recording;
  recording.summaries = {Table(10 * kGiB, 21 * kGiB, 0)};
  EXPECT_NE(Find(ExplainSummaries(recording), "fragmentation"), nullptr);
  recording.summaries = {Table(20 * kGiB, 21 * kGiB, 0)};
  EXPECT_NE(Find(ExplainSummaries(recording), "none"), nullptr);
}

TEST(ExplainSummaries, BesideAMessageOfTheSameDevice) {
  Recording recording;
  recording.messages.emplace_back();
  recording.messages[0].device = 2;
  recording.summaries = {Table(20 * kGiB, 21 * kGiB, 1)};
  EXPECT_TRUE(ExplainSummaries(recording).ranks.empty());
  EXPECT_EQ(ExplainMessages(recording).ranks.at(0).peak_allocated, 20 * kGiB);
  recording.messages[0].device = 0;
  EXPECT_EQ(ExplainSummaries(recording).ranks.size(), 1u);
  EXPECT_EQ(ExplainMessages(recording).ranks.at(0).peak_allocated, std::nullopt);
}

TEST(ExplainCategories, AccountAtThePeak) {
  Recording recording;
  recording.categories.emplace();
  recording.categories->device = "cuda:1";
  recording.categories->samples = {{.time_us = 1, .bytes = {10, 0, 0, 0, 5, 0, 0, 0}},
                                   {.time_us = 2, .bytes = {10, 20, 3, 4, 50, 6, 7, 8}},
                                   {.time_us = 3, .bytes = {10, 20, 3, 4, 0, 60, 0, 0}}};
  const Explanation e = ExplainCategories(recording);
  ASSERT_EQ(e.ranks.size(), 1u);
  const RankReport& rank = e.ranks[0];
  EXPECT_EQ(rank.device, 1);
  EXPECT_EQ(rank.instant.time_us, 2);
  EXPECT_EQ(rank.peak_allocated, 108);
  EXPECT_EQ(Total(rank), 108);
  EXPECT_EQ(Line(rank, "activations"), 50);
  EXPECT_EQ(Line(rank, "temporaries"), 11);
  ASSERT_TRUE(rank.peaks.has_value());
  EXPECT_EQ((*rank.peaks)[static_cast<std::size_t>(Category::kGradients)], 60);
  EXPECT_NE(e.verdict.find("activations"), std::string::npos);
}

}  // namespace
}  // namespace plimsoll::summaries_test

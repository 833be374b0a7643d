#include "allocator/settings/version.h"

#include <gtest/gtest.h>

namespace plimsoll::version_test {
namespace {

constexpr TorchVersion Two(int minor) { return {.major = 2, .minor = minor}; }

TEST(TorchVersion, IsReadFromTheTextsThatRecordsAndPeopleGive) {
  EXPECT_EQ(ParseTorchVersion("2.11"), Two(11));
  EXPECT_EQ(ParseTorchVersion("2.11.0+cu130"), Two(11));
  EXPECT_EQ(ParseTorchVersion("v2.9.1"), Two(9));
  EXPECT_EQ(ParseTorchVersion("2.14.0a0+git1234"), Two(14));
  EXPECT_EQ(ParseTorchVersion("2.15rc1"), Two(15));
  EXPECT_EQ(ParseTorchVersion("2.14 or newer"), Two(14));
  EXPECT_EQ(ParseTorchVersion("1.13"), (TorchVersion{.major = 1, .minor = 13}));
}

TEST(TorchVersion, OfSeveralTheNewestCounts) {
  EXPECT_EQ(ParseTorchVersion("2.2 to 2.9"), Two(9));
  EXPECT_EQ(ParseTorchVersion("2.10 to 2.9"), Two(10));
  EXPECT_EQ(ParseTorchVersion("2.2-2.4"), Two(4));
}

TEST(TorchVersion, IsNotReadFromOtherText) {
  for (const char* text : {"", " ", "2", "2.", ".11", "two", "2.x", "-2.x", "12GiB", "2.11GiB",
                           "2.99999999999", "99999999999.1", "x2.11", "+2.11"}) {
    EXPECT_EQ(ParseTorchVersion(text), std::nullopt) << text;
  }
}

TEST(TorchVersion, IsWrittenAsItIsRead) {
  EXPECT_EQ(Two(11).ToText(), "2.11");
  for (int minor = 0; minor < 20; ++minor) {
    EXPECT_EQ(ParseTorchVersion(Two(minor).ToText()), Two(minor));
  }
}

TEST(TorchVersion, IsOrderedByMajorThenMinor) {
  EXPECT_LT(Two(9), Two(10));
  EXPECT_LT((TorchVersion{.major = 1, .minor = 13}), Two(0));
}

TEST(TorchVersions, TiesBetweenBlocksAreBrokenInThreeWays) {
  EXPECT_EQ(RulesOf(Two(11)).tie_break, TieBreak::kAddress);
  EXPECT_EQ(RulesOf(Two(12)).tie_break, TieBreak::kBlockNumber);
  EXPECT_EQ(RulesOf(Two(13)).tie_break, TieBreak::kSegmentNumber);
}

TEST(TorchVersions, OneFlagEachBeginsWithItsRelease) {
  struct Begin {
    bool VersionRules::*rule;
    int minor;
  };
  using R = VersionRules;
  for (const Begin& b : {Begin{&R::private_pools_expand, 5},
                         {&R::has_max_non_split_rounding, 6},
                         {&R::has_pinned_background_threads, 6},
                         {&R::has_graph_capture_record_stream_reuse, 9},
                         {&R::shared_parser, 10},
                         {&R::greater_key_after_last, 10},
                         {&R::has_per_process_memory_fraction, 10},
                         {&R::has_pinned_reserve_segment, 10},
                         {&R::has_large_segment_size, 11},
                         {&R::has_throw_on_cudamalloc_oom, 12},
                         {&R::has_pinned_free_catch_all, 12},
                         {&R::has_pinned_max_sizes, 13},
                         {&R::has_expandable_segments_reserve, 15}}) {
    for (int minor = 4; minor <= 15; ++minor) {
      EXPECT_EQ(RulesOf(Two(minor)).*b.rule, minor >= b.minor) << "since 2." << b.minor;
    }
  }
  EXPECT_TRUE(RulesOf(Two(12)).pool_scope_counts_as_capture);
  EXPECT_FALSE(RulesOf(Two(13)).pool_scope_counts_as_capture);
}

TEST(TorchVersions, OutsideTheTableTheNearestCounts) {
  EXPECT_EQ(NewestKnown(), Two(15));
  EXPECT_EQ(&RulesOf(Two(99)), &RulesOf(NewestKnown()));
  EXPECT_EQ(&RulesOf({.major = 3, .minor = 0}), &RulesOf(NewestKnown()));
  EXPECT_FALSE(RulesOf({.major = 1, .minor = 13}).has_max_non_split_rounding);
  EXPECT_FALSE(RulesOf(Two(-1)).has_max_non_split_rounding);
}

}  // namespace
}  // namespace plimsoll::version_test

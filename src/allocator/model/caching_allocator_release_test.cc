#include "allocator/model/caching_allocator.h"

#include <gtest/gtest.h>

#include "allocator/replay/model_for_tests.h"

namespace plimsoll::caching_allocator_release_test {
namespace {

using testing_model::Model;
using testing_model::ModelSetup;
using BlockId = CachingAllocator::BlockId;
constexpr BlockId kNone = CachingAllocator::kNone;
constexpr const char* kExpandable = "expandable_segments:True";

// ---- max_split_size

constexpr const char* kSplit64 = "max_split_size_mb:64";

TEST(MaxSplitSize, ANormalRequestNeverTakesAnOversizeBlock) {
  Model m({.conf = kSplit64});
  m.Cache(64 * kMiB);
  m.FreeCached();
  EXPECT_FALSE(m.allocator.Serves(62 * kMiB, 0, 0)) << "64 MiB is oversize already";
  m.Take(30 * kMiB);
  EXPECT_EQ(m.Calls(), "+30");
  Model below({.conf = kSplit64});
  below.Cache(62 * kMiB);
  below.FreeCached();
  EXPECT_TRUE(below.allocator.Serves(30 * kMiB, 0, 0));
}

TEST(MaxSplitSize, AnOversizeRequestTakesABlockLessThanTwentyMebibytesLargerAndKeepsAllOfIt) {
  Model m({.conf = kSplit64});
  m.Cache(84 * kMiB);
  m.FreeCached();
  EXPECT_FALSE(m.allocator.Serves(64 * kMiB, 0, 0)) << "exactly 20 MiB larger is too large";
  const BlockId taken = m.Take(64 * kMiB + 512);
  EXPECT_EQ(m.Calls(), "");
  EXPECT_EQ(m.SizeOf(taken), 84 * kMiB);
  EXPECT_EQ(m.counters().allocated, 84 * kMiB);
}

TEST(MaxSplitSize, TheWindowIsASettingOfItsOwn) {
  Model m({.conf = "max_split_size_mb:64,max_non_split_rounding_mb:128"});
  m.Cache(190 * kMiB);
  m.FreeCached();
  EXPECT_TRUE(m.allocator.Serves(64 * kMiB, 0, 0));
  Model edge({.conf = "max_split_size_mb:64,max_non_split_rounding_mb:128"});
  edge.Cache(192 * kMiB);
  edge.FreeCached();
  EXPECT_FALSE(edge.allocator.Serves(64 * kMiB, 0, 0));
}

TEST(MaxSplitSize, TheSmallestOversizeBlockThatSufficesIsGivenBackFirst) {
  Model m({.conf = kSplit64, .limits = {.limit = 300 * kMiB}});
  m.Cache(120 * kMiB);
  m.Cache(100 * kMiB);
  m.Cache(70 * kMiB);
  m.FreeCached();
  EXPECT_NE(m.Take(76 * kMiB), kNone);
  EXPECT_EQ(m.Calls(), "-100 +76") << "70 is too small, 120 is larger than need be";
  EXPECT_EQ(m.counters().retries, 0) << "which is no retry";
}

TEST(MaxSplitSize, OrElseTheLargestUntilTheirSumSuffices) {
  Model m({.conf = kSplit64, .limits = {.limit = 270 * kMiB}});
  m.Cache(70 * kMiB);
  m.Cache(110 * kMiB);
  m.Cache(90 * kMiB);
  m.FreeCached();
  EXPECT_NE(m.Take(150 * kMiB), kNone);
  EXPECT_EQ(m.Calls(), "-110 -90 +150");
  EXPECT_EQ(m.counters().retries, 0);
}

TEST(MaxSplitSize, IfTheSumFallsShortTheyAreGivenBackAllTheSameAndThenAllElse) {
  Model m({.conf = kSplit64, .limits = {.limit = 160 * kMiB}});
  m.Cache(40 * kMiB);
  m.Cache(70 * kMiB);
  m.FreeCached();
  EXPECT_NE(m.Take(150 * kMiB), kNone);
  EXPECT_EQ(m.Calls(), "-70 -40 +150");
  EXPECT_EQ(m.counters().retries, 1);
}

TEST(MaxSplitSize, ASumThatFallsShortIsNotTriedEvenIfItWouldDo) {
  Model m({.conf = kSplit64, .limits = {.limit = 160 * kMiB}});
  m.Cache(40 * kMiB);
  m.Cache(70 * kMiB);
  m.FreeCached();
  EXPECT_NE(m.Take(80 * kMiB), kNone);
  EXPECT_EQ(m.Calls(), "-70 -40 +80") << "90 MiB were free of the limit after the first";
  EXPECT_EQ(m.counters().retries, 1);
}

TEST(MaxSplitSize, OversizeBlocksOfAnotherStreamStayInThisStep) {
  Model m({.conf = kSplit64, .limits = {.limit = 200 * kMiB}, .streams = {0, 7}});
  m.Cache(100 * kMiB, 1);
  m.Cache(20 * kMiB, 0);
  m.FreeCached();
  EXPECT_NE(m.Take(90 * kMiB), kNone);
  EXPECT_EQ(m.Calls(), "-20 -100 +90") << "the full release, stream by stream";
  EXPECT_EQ(m.counters().retries, 1);
}

// ---- garbage collection

/// A limit of 100 MiB, of which half may be held before segments are collected.
ModelSetup Collecting(const char* conf = "garbage_collection_threshold:0.5") {
  return {.conf = conf, .limits = {.limit = 100 * kMiB}, .pools = 2};
}

/// Frees a block and takes it again, so that what is free already grows older by one search.
void Age(Model& m, BlockId& block, int searches) {
  for (int i = 0; i < searches; ++i) {
    const Bytes size = m.SizeOf(block);
    m.allocator.Free(block);
    block = m.Take(size);
  }
}

TEST(GarbageCollection, GivesBackWhatWasFreeForLongerThanTheAverage) {
  Model m(Collecting());
  const BlockId a = m.Take(20 * kMiB);
  const BlockId b = m.Take(22 * kMiB);
  BlockId other = m.Take(14 * kMiB);
  m.allocator.Free(a);
  Age(m, other, 1);
  m.allocator.Free(b);
  m.allocator.ClearCalls();
  EXPECT_NE(m.Take(30 * kMiB), kNone);
  EXPECT_EQ(m.Calls(), "-20 +30") << "b was freed later";
}

TEST(GarbageCollection, ARoundDoesNotStopWhenEnoughIsCollected) {
  Model m(Collecting());
  m.Cache(20 * kMiB);
  m.Cache(22 * kMiB);
  m.Cache(24 * kMiB);
  m.FreeCached();
  EXPECT_NE(m.Take(30 * kMiB), kNone);
  EXPECT_EQ(m.Calls(), "-20 -22 -24 +30") << "one age, so all; 16 MiB would have been enough";
  EXPECT_EQ(m.counters().retries, 0);
}

TEST(GarbageCollection, GoesOnInRoundsUntilEnoughIsCollected) {
  Model m(Collecting());
  const BlockId oldest = m.Take(14 * kMiB);
  const BlockId older = m.Take(16 * kMiB);
  const BlockId young = m.Take(18 * kMiB);
  BlockId other = m.Take(20 * kMiB);
  m.allocator.Free(oldest);
  Age(m, other, 3);
  m.allocator.Free(older);
  Age(m, other, 2);
  m.allocator.Free(young);
  m.allocator.ClearCalls();
  // Ages 6, 3 and 1; 18 MiB are to be collected. Above the average is one, and then another.
  EXPECT_NE(m.Take(30 * kMiB), kNone);
  EXPECT_EQ(m.Calls(), "-14 -16 +30");
}

TEST(GarbageCollection, LeavesAloneWhatIsBelowTheThresholdOrSplitOrSmallOrPrivate) {
  Model below(Collecting());
  below.Cache(20 * kMiB);
  below.Cache(30 * kMiB);
  below.FreeCached();
  below.Take(40 * kMiB);
  EXPECT_EQ(below.Calls(), "+40") << "50 MiB held are the threshold, not above it";

  Model split(Collecting());
  const BlockId part = split.Take(12 * kMiB);
  split.Take(8 * kMiB);
  const BlockId rest = split.Take(32 * kMiB);
  split.allocator.Free(part);
  split.allocator.ClearCalls();
  EXPECT_EQ(split.SizeOf(rest), 32 * kMiB);
  split.Take(30 * kMiB);
  EXPECT_EQ(split.Calls(), "-12 +30");

  Model part_used(Collecting());
  const BlockId first = part_used.Take(8 * kMiB);
  part_used.Take(8 * kMiB);
  part_used.Take(40 * kMiB);
  part_used.allocator.Free(first);
  part_used.allocator.ClearCalls();
  part_used.Take(30 * kMiB);
  EXPECT_EQ(part_used.Calls(), "+30") << "a segment in use stays";

  Model other(Collecting());
  other.Cache(512);
  other.Cache(24 * kMiB, 0, 1);
  other.FreeCached();
  other.Take(30 * kMiB);
  other.Take(30 * kMiB);
  EXPECT_EQ(other.Calls(), "+30 +30") << "neither the small pool nor a private one";
}

TEST(GarbageCollection, AMissOfTheSmallPoolCollectsTheLargeOne) {
  Model m(Collecting());
  m.Cache(60 * kMiB);
  m.FreeCached();
  m.Take(512);
  EXPECT_EQ(m.Calls(), "-60 +2");
}

TEST(GarbageCollection, NeedsALimitToMeasureAgainst) {
  Model m({.conf = "garbage_collection_threshold:0.1"});
  m.Cache(60 * kMiB);
  m.FreeCached();
  m.Take(80 * kMiB);
  EXPECT_EQ(m.Calls(), "+80");
  EXPECT_EQ(m.allocator.CollectionThreshold(), std::nullopt);
}

TEST(GarbageCollection, NeverTakesExpandableMemory) {
  Model m(Collecting("expandable_segments:True,garbage_collection_threshold:0.5"));
  m.allocator.Free(m.Take(60 * kMiB));
  m.allocator.ClearCalls();
  m.Take(512);
  EXPECT_EQ(m.Calls(), "+2");
}

// ---- limits and the last resorts

TEST(Limit, SoMuchAndNotOneSegmentMore) {
  Model m({.limits = {.limit = 40 * kMiB}});
  EXPECT_NE(m.Take(20 * kMiB), kNone);
  EXPECT_NE(m.Take(20 * kMiB), kNone) << "equal to the limit is allowed";
  EXPECT_EQ(m.Take(512), kNone);
  EXPECT_EQ(m.counters().refused, 1);
  EXPECT_EQ(m.counters().retries, 1);
  EXPECT_EQ(m.counters().peak_reserved, 40 * kMiB);
  Model one_less({.limits = {.limit = 40 * kMiB - 1}});
  EXPECT_NE(one_less.Take(20 * kMiB), kNone);
  EXPECT_EQ(one_less.Take(20 * kMiB), kNone);
}

TEST(Limit, TheSegmentCountsNotTheRequest) {
  Model m({.limits = {.limit = 19 * kMiB}});
  EXPECT_EQ(m.Take(2 * kMiB), kNone) << "it would take 20 MiB";
  EXPECT_NE(m.Take(12 * kMiB), kNone);
}

TEST(Capacity, SoMuchAndNotOneSegmentMore) {
  Model m({.limits = {.capacity = 40 * kMiB}});
  EXPECT_NE(m.Take(20 * kMiB), kNone);
  EXPECT_NE(m.Take(20 * kMiB), kNone);
  EXPECT_EQ(m.Take(512), kNone);
  Model one_less({.limits = {.capacity = 40 * kMiB - 1}});
  EXPECT_NE(one_less.Take(20 * kMiB), kNone);
  EXPECT_EQ(one_less.Take(20 * kMiB), kNone);
}

TEST(Capacity, ACacheHitNeedsNoDriver) {
  Model m({.limits = {.capacity = 20 * kMiB}});
  m.Cache(20 * kMiB);
  m.FreeCached();
  EXPECT_NE(m.Take(8 * kMiB), kNone);
  EXPECT_NE(m.Take(8 * kMiB), kNone);
  EXPECT_EQ(m.Calls(), "");
}

TEST(Retry, GivesBackTheLargePoolThenTheSmallEachByStreamAndSize) {
  Model m({.limits = {.capacity = 200 * kMiB}, .streams = {77, 5}});
  m.Cache(512, 0);
  m.Cache(30 * kMiB, 0);
  m.Cache(26 * kMiB, 0);
  m.Cache(40 * kMiB, 1);
  m.Cache(512, 1);
  m.FreeCached();
  EXPECT_NE(m.Take(180 * kMiB), kNone);
  EXPECT_EQ(m.Calls(), "-40 -26 -30 -2 -2 +180") << "stream 5 has the lower cudaStream_t";
  EXPECT_EQ(m.counters().retries, 1);
  EXPECT_EQ(m.counters().given_back, 100 * kMiB);
}

TEST(Retry, OfOneSizeTheReleasesOrderDecides) {
  const auto first_freed = [](int minor) {
    Model m({.torch = {2, minor}, .limits = {.capacity = 60 * kMiB}});
    m.driver.next = {0x3000000000, 0x1000000000};
    m.Cache(24 * kMiB);
    m.Cache(24 * kMiB);
    m.FreeCached();
    m.Take(50 * kMiB);
    return m.allocator.calls().at(0).address;
  };
  EXPECT_EQ(first_freed(11), 0x1000000000u);
  EXPECT_EQ(first_freed(12), 0x3000000000u);
  EXPECT_EQ(first_freed(13), 0x3000000000u);
}

TEST(Retry, ASegmentWithABlockInUseStays) {
  Model m({.limits = {.capacity = 40 * kMiB}});
  const BlockId a = m.Take(8 * kMiB);
  m.Take(8 * kMiB);
  m.allocator.Free(a);
  m.allocator.ClearCalls();
  EXPECT_EQ(m.Take(24 * kMiB), kNone);
  EXPECT_EQ(m.Calls(), "");
  EXPECT_EQ(m.counters().refused, 1);
}

TEST(Retry, InACaptureNothingIsReleased) {
  Model m({.limits = {.capacity = 40 * kMiB}});
  m.Cache(30 * kMiB);
  m.FreeCached();
  EXPECT_EQ(m.allocator.Allocate(36 * kMiB, 0, 0, true), kNone);
  EXPECT_EQ(m.Calls(), "");
  EXPECT_EQ(m.counters().retries, 0);
  EXPECT_NE(m.allocator.Allocate(36 * kMiB, 0, 0, false), kNone);
}

TEST(Retry, MoreThanAnyDeviceHasIsRefusedAtOnce) {
  for (const char* conf : {"", kExpandable}) {
    Model m({.conf = conf, .limits = {.capacity = 80 * kGiB}});
    m.Cache(30 * kMiB);
    m.FreeCached();
    EXPECT_EQ(m.Take(kNoDevice), kNone);
    EXPECT_EQ(m.Take(std::numeric_limits<Bytes>::max()), kNone);
    EXPECT_EQ(m.Calls(), "") << "without a retry";
    EXPECT_EQ(m.counters().retries, 0);
    EXPECT_EQ(m.counters().refused, 2);
    EXPECT_EQ(m.Take(kNoDevice - 1), kNone) << "and without an overflow just below";
  }
}

}  // namespace
}  // namespace plimsoll::caching_allocator_release_test

#include "allocator/caching_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "allocator/model_for_tests.h"

namespace plimsoll {
namespace {

using testing_model::ModelSetup;
using testing_model::RulesFor;
using testing_model::ScriptedDriver;
using BlockId = CachingAllocator::BlockId;
using State = CachingAllocator::State;
constexpr BlockId kNone = CachingAllocator::kNone;
constexpr const char* kExpandable = "expandable_segments:True";

/// An allocator and its driver.
class Model {
 public:
  explicit Model(const ModelSetup& setup = {})
      : allocator(RulesFor(setup), setup.limits, driver, setup.streams, setup.pools) {}

  BlockId Take(Bytes size, std::uint16_t stream = 0, std::uint8_t pool = 0) {
    return allocator.Allocate(size, stream, pool);
  }
  /// A segment of its own, free again: something to find in the cache.
  BlockId Cache(Bytes size, std::uint16_t stream = 0, std::uint8_t pool = 0) {
    const BlockId block = Take(size, stream, pool);
    later_.push_back(block);
    return block;
  }
  void FreeCached() {
    for (const BlockId block : later_) allocator.Free(block);
    later_.clear();
    allocator.ClearCalls();
  }
  Address At(BlockId block) const { return allocator.block(block).address; }
  Bytes SizeOf(BlockId block) const { return allocator.block(block).size; }
  const AllocatorCounters& counters() const { return allocator.counters(); }
  /// "+20 +2 -20": MiB from and to the driver since the last look.
  std::string Calls() {
    std::string text;
    for (const DriverCall& c : allocator.calls()) {
      const bool more = c.action == Action::kSegmentAlloc || c.action == Action::kSegmentMap;
      text +=
          (text.empty() ? "" : " ") + std::string(more ? "+" : "-") + std::to_string(c.size / kMiB);
    }
    allocator.ClearCalls();
    return text;
  }

  ScriptedDriver driver;
  CachingAllocator allocator;

 private:
  std::vector<BlockId> later_;
};

// ---- pools, segments, splits

TEST(CachingAllocator, SmallRequestsShareASegmentOfTwoMebibytes) {
  Model m;
  const BlockId a = m.Take(1);
  const BlockId b = m.Take(513);
  EXPECT_EQ(m.SizeOf(a), 512);
  EXPECT_EQ(m.SizeOf(b), 1024);
  EXPECT_EQ(m.At(b), m.At(a) + 512);
  EXPECT_EQ(m.Calls(), "+2");
  EXPECT_EQ(m.counters().allocated, 1536);
  EXPECT_EQ(m.counters().reserved, 2 * kMiB);
}

TEST(CachingAllocator, TheRoundedSizeDecidesBetweenThePools) {
  Model m;
  m.Take(kMiB);
  EXPECT_EQ(m.Calls(), "+2");
  m.Take(kMiB + 1);
  EXPECT_EQ(m.Calls(), "+20") << "the free mebibyte of the small pool does not serve";
  m.Take(kMiB - 511);
  EXPECT_EQ(m.Calls(), "") << "it rounds to 1 MiB, which is left in the small segment";
}

TEST(CachingAllocator, SegmentsAreTwoTwentyOrTheRequestRoundedToTwo) {
  const auto segment = [](Bytes size) {
    Model m;
    m.Take(size);
    return m.Calls();
  };
  EXPECT_EQ(segment(1), "+2");
  EXPECT_EQ(segment(kMiB), "+2");
  EXPECT_EQ(segment(kMiB + 1), "+20");
  EXPECT_EQ(segment(10 * kMiB - 512), "+20");
  EXPECT_EQ(segment(10 * kMiB - 511), "+10") << "rounded up to 10 MiB before it is compared";
  EXPECT_EQ(segment(10 * kMiB), "+10");
  EXPECT_EQ(segment(10 * kMiB + 1), "+12");
  EXPECT_EQ(segment(41 * kMiB), "+42");
}

TEST(CachingAllocator, ALargeBlockKeepsARemainderOfOneMebibyteAndSplitsOffMore) {
  Model keeps;
  EXPECT_EQ(keeps.SizeOf(keeps.Take(19 * kMiB)), 20 * kMiB);
  EXPECT_FALSE(keeps.allocator.Serves(kMiB, 0, 0));
  Model splits;
  EXPECT_EQ(splits.SizeOf(splits.Take(19 * kMiB - 512)), 19 * kMiB - 512);
  EXPECT_TRUE(splits.allocator.Serves(kMiB + 512, 0, 0));
}

TEST(CachingAllocator, ASmallBlockSplitsDownToFiveHundredAndTwelve) {
  Model m;
  m.Take(kMiB);
  const BlockId a = m.Take(kMiB - 512);
  EXPECT_EQ(m.SizeOf(a), kMiB - 512);
  EXPECT_EQ(m.SizeOf(m.Take(512)), 512);
  EXPECT_EQ(m.Calls(), "+2");
}

TEST(CachingAllocator, BestFitTakesTheSmallestThatSuffices) {
  Model m;
  m.Cache(30 * kMiB);
  const BlockId middle = m.Cache(24 * kMiB);
  m.Cache(60 * kMiB);
  m.Cache(22 * kMiB);
  const Address wanted = m.At(middle);
  m.FreeCached();
  EXPECT_EQ(m.At(m.Take(23 * kMiB)), wanted);
  EXPECT_EQ(m.Calls(), "");
}

TEST(CachingAllocator, AnExactFitIsNotSplit) {
  Model m;
  m.Cache(24 * kMiB);
  m.FreeCached();
  EXPECT_EQ(m.SizeOf(m.Take(24 * kMiB)), 24 * kMiB);
  EXPECT_FALSE(m.allocator.Serves(512, 0, 0));
}

TEST(CachingAllocator, LargeSegmentSizeIsAsked) {
  const auto segment = [](const char* conf, Bytes size) {
    Model m({.conf = conf});
    m.Take(size);
    return m.Calls();
  };
  constexpr const char* k64 = "large_segment_size_mb:64";
  EXPECT_EQ(segment(k64, kMiB), "+2");
  EXPECT_EQ(segment(k64, 2 * kMiB), "+64");
  EXPECT_EQ(segment(k64, 10 * kMiB - 512), "+64");
  EXPECT_EQ(segment(k64, 12 * kMiB), "+12");
  EXPECT_EQ(segment("large_segment_size_mb:64,expandable_segments:True", 12 * kMiB), "+64")
      << "it is the page of expandable segments too";
}

TEST(CachingAllocator, PowerOfTwoDivisionsMakeBlocksReusable) {
  Model m({.conf = "roundup_power2_divisions:4"});
  const BlockId a = m.Take(33 * kMiB);
  EXPECT_EQ(m.SizeOf(a), 40 * kMiB);
  m.allocator.Free(a);
  m.allocator.ClearCalls();
  m.Take(39 * kMiB);
  EXPECT_EQ(m.Calls(), "");
}

// ---- which of several equal blocks

/// Three free segments of one size: C lies lowest, B has the oldest block object (A's was made anew
/// by a split), A was made first.
char TakenOfThree(TorchVersion torch) {
  Model m({.torch = torch});
  m.driver.next = {0x3000000000, 0x2000000000, 0x1000000000};
  const BlockId a = m.Take(24 * kMiB);
  const BlockId b = m.Take(24 * kMiB);
  const BlockId c = m.Take(24 * kMiB);
  m.allocator.Free(a);
  m.allocator.Free(m.Take(12 * kMiB));
  m.allocator.Free(b);
  m.allocator.Free(c);
  const Address at = m.At(m.Take(24 * kMiB));
  return at == 0x3000000000 ? 'A' : at == 0x2000000000 ? 'B' : 'C';
}

TEST(TieBreak, EveryReleaseHasItsOwnFavourite) {
  EXPECT_EQ(TakenOfThree({2, 4}), 'C');
  EXPECT_EQ(TakenOfThree({2, 11}), 'C');
  EXPECT_EQ(TakenOfThree({2, 12}), 'B');
  EXPECT_EQ(TakenOfThree({2, 13}), 'A');
  EXPECT_EQ(TakenOfThree({2, 15}), 'A');
}

/// In one segment: [x][y][p2][p3][p4] where x has the youngest object but the lowest address.
Address OffsetTakenInOneSegment(TorchVersion torch) {
  Model m({.torch = torch});
  const BlockId p1 = m.Take(4 * kMiB);
  m.Take(2 * kMiB);
  const BlockId p3 = m.Take(2 * kMiB);
  m.Take(2 * kMiB);
  const Address base = m.At(p1);
  m.allocator.Free(p1);
  const BlockId x = m.Take(2 * kMiB);
  EXPECT_EQ(m.At(x), base);
  EXPECT_EQ(m.At(m.Take(2 * kMiB)), base + 2 * kMiB);
  m.allocator.Free(x);
  m.allocator.Free(p3);
  return m.At(m.Take(2 * kMiB)) - base;
}

TEST(TieBreak, InOneSegmentTheLowestAddressWinsExceptInTwoTwelve) {
  EXPECT_EQ(OffsetTakenInOneSegment({2, 11}), 0u);
  EXPECT_EQ(OffsetTakenInOneSegment({2, 12}), Address{6 * kMiB});
  EXPECT_EQ(OffsetTakenInOneSegment({2, 13}), 0u);
}

TEST(TieBreak, SizeComesBeforeAnyTie) {
  for (const int minor : {11, 12, 13}) {
    Model m({.torch = {2, minor}});
    m.driver.next = {0x1000000000, 0x2000000000};
    m.Cache(26 * kMiB);
    m.Cache(24 * kMiB);
    m.FreeCached();
    EXPECT_EQ(m.At(m.Take(23 * kMiB)), 0x2000000000u) << minor;
  }
}

TEST(TieBreak, SegmentsKeepTheirOrderHoweverFarApartTheyLie) {
  Model m({.torch = {2, 13}});
  m.driver.next = {0xfff000000000, 0x1000000000, 0x7f0000000000};
  for (int i = 0; i < 3; ++i) m.Cache(24 * kMiB);
  m.FreeCached();
  EXPECT_EQ(m.At(m.Take(24 * kMiB)), 0xfff000000000u);
  EXPECT_EQ(m.At(m.Take(24 * kMiB)), 0x1000000000u);
  EXPECT_EQ(m.At(m.Take(24 * kMiB)), 0x7f0000000000u);
}

// ---- merging

TEST(CachingAllocator, AFreedBlockJoinsBothNeighboursAndSurvives) {
  for (const int minor : {11, 12, 13}) {
    Model m({.torch = {2, minor}});
    const BlockId a = m.Take(4 * kMiB);
    const BlockId b = m.Take(4 * kMiB);
    const BlockId c = m.Take(4 * kMiB);
    m.Take(8 * kMiB);
    const Address base = m.At(a);
    const std::uint64_t number = m.allocator.block(b).number;
    m.allocator.Free(a);
    m.allocator.Free(c);
    m.allocator.Free(b);
    EXPECT_EQ(m.allocator.block(b).state, State::kFree);
    EXPECT_EQ(m.At(b), base);
    EXPECT_EQ(m.SizeOf(b), 12 * kMiB);
    EXPECT_EQ(m.allocator.block(b).number, number) << "the object that was freed, with its number";
    EXPECT_EQ(m.At(m.Take(9 * kMiB)), base);
    EXPECT_EQ(m.Calls(), "+20");
  }
}

TEST(CachingAllocator, SegmentsThatTouchStayTwo) {
  Model m;
  m.driver.next = {0x1000000000, 0x1000000000 + 24 * kMiB};
  m.Cache(24 * kMiB);
  m.Cache(24 * kMiB);
  m.FreeCached();
  EXPECT_FALSE(m.allocator.Serves(25 * kMiB, 0, 0));
}

TEST(CachingAllocator, ABlockThatWaitsIsNoNeighbourToJoin) {
  Model m;
  const BlockId a = m.Take(4 * kMiB);
  const BlockId b = m.Take(4 * kMiB);
  m.Take(8 * kMiB);
  const auto ticket = m.allocator.RequestFree(a);
  m.allocator.Free(b);
  EXPECT_EQ(m.SizeOf(b), 4 * kMiB);
  m.allocator.CompleteFree(ticket);
  EXPECT_EQ(m.SizeOf(a), 8 * kMiB);
}

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

// ---- streams and frees that wait

TEST(Streams, PartitionTheCache) {
  Model m({.streams = {0, 7}});
  m.Cache(24 * kMiB, 1);
  m.Cache(512, 1);
  m.FreeCached();
  EXPECT_FALSE(m.allocator.Serves(24 * kMiB, 0, 0));
  EXPECT_FALSE(m.allocator.Serves(512, 0, 0));
  EXPECT_TRUE(m.allocator.Serves(24 * kMiB, 1, 0));
  m.allocator.EmptyCache();
  EXPECT_EQ(m.counters().reserved, 0) << "but are emptied together";
}

TEST(Pending, CountsAsFreedButServesNobody) {
  Model m;
  const BlockId a = m.Take(24 * kMiB);
  const auto ticket = m.allocator.RequestFree(a);
  EXPECT_EQ(m.counters().allocated, 0);
  EXPECT_FALSE(m.allocator.Serves(24 * kMiB, 0, 0));
  m.allocator.CompleteFree(ticket);
  EXPECT_TRUE(m.allocator.Serves(24 * kMiB, 0, 0));
}

TEST(Pending, CompletesInAnyOrder) {
  Model m;
  const auto first = m.allocator.RequestFree(m.Take(24 * kMiB));
  const auto second = m.allocator.RequestFree(m.Take(26 * kMiB));
  const auto third = m.allocator.RequestFree(m.Take(28 * kMiB));
  m.allocator.CompleteFree(second);
  EXPECT_EQ(m.SizeOf(m.Take(20 * kMiB)), 20 * kMiB);
  EXPECT_FALSE(m.allocator.Serves(24 * kMiB, 0, 0));
  m.allocator.CompleteFree(third);
  m.allocator.CompleteFree(first);
  EXPECT_TRUE(m.allocator.Serves(28 * kMiB, 0, 0));
  m.allocator.CompleteFree(first);  // once more: nothing
  m.allocator.CompleteFree(999);    // never given: nothing
}

TEST(Pending, AReleaseWaitsForIt) {
  for (const bool retry : {true, false}) {
    Model m({.limits = {.capacity = 40 * kMiB}});
    m.allocator.RequestFree(m.Take(30 * kMiB));
    m.allocator.ClearCalls();
    if (retry) {
      EXPECT_NE(m.Take(36 * kMiB), kNone);
      EXPECT_EQ(m.Calls(), "-30 +36");
    } else {
      m.allocator.EmptyCache();
      EXPECT_EQ(m.Calls(), "-30");
    }
  }
}

TEST(Pending, ATicketStaysValidThoughItsBlockIsUsedAnew) {
  Model m({.limits = {.capacity = 40 * kMiB}});
  const auto ticket = m.allocator.RequestFree(m.Take(30 * kMiB));
  const BlockId other = m.Take(36 * kMiB);  // the release waited, the table's place is used again
  ASSERT_NE(other, kNone);
  m.allocator.CompleteFree(ticket);
  EXPECT_EQ(m.allocator.block(other).state, State::kAllocated);
  EXPECT_EQ(m.counters().allocated, 36 * kMiB);
  const auto next = m.allocator.RequestFree(other);
  EXPECT_NE(next, ticket);
  m.allocator.CompleteFree(ticket);
  EXPECT_EQ(m.allocator.block(other).state, State::kPending);
  m.allocator.CompleteFree(next);
  EXPECT_EQ(m.allocator.block(other).state, State::kFree);
}

// ---- private pools

TEST(PrivatePools, NeitherSideBorrows) {
  Model m({.pools = 3});
  m.Cache(24 * kMiB, 0, 0);
  m.Cache(26 * kMiB, 0, 1);
  m.Cache(512, 0, 1);
  m.FreeCached();
  EXPECT_FALSE(m.allocator.Serves(26 * kMiB, 0, 0));
  EXPECT_FALSE(m.allocator.Serves(512, 0, 0));
  EXPECT_FALSE(m.allocator.Serves(24 * kMiB, 0, 2));
  EXPECT_TRUE(m.allocator.Serves(26 * kMiB, 0, 1));
}

TEST(PrivatePools, AreReleasedOnlyWhenAbandoned) {
  Model m({.pools = 3});
  m.Cache(24 * kMiB, 0, 0);
  m.Cache(26 * kMiB, 0, 1);
  m.Cache(28 * kMiB, 0, 2);
  m.FreeCached();
  m.allocator.EmptyCache();
  EXPECT_EQ(m.Calls(), "-24");
  m.allocator.AbandonPool(2);
  m.allocator.AbandonPool(2);
  m.allocator.EmptyCache();
  EXPECT_EQ(m.Calls(), "-28");
  m.allocator.AbandonPool(0);  // the default pool has no owner
  m.allocator.EmptyCache();
  EXPECT_EQ(m.Calls(), "");
  EXPECT_EQ(m.counters().reserved, 26 * kMiB);
}

TEST(PrivatePools, AnAbandonedOneMakesRoomForARetry) {
  Model m({.limits = {.capacity = 40 * kMiB}, .pools = 2});
  m.Cache(30 * kMiB, 0, 1);
  m.FreeCached();
  EXPECT_EQ(m.Take(36 * kMiB), kNone);
  m.allocator.AbandonPool(1);
  EXPECT_NE(m.Take(36 * kMiB), kNone);
  EXPECT_EQ(m.Calls(), "-30 +36");
}

TEST(EmptyCache, OfAnEmptyCacheDoesNothing) {
  Model m;
  m.allocator.EmptyCache();
  m.Take(24 * kMiB);
  m.Take(512);
  m.allocator.ClearCalls();
  m.allocator.EmptyCache();
  EXPECT_EQ(m.Calls(), "");
  EXPECT_EQ(m.counters().retries, 0) << "it is no retry";
}

// ---- expandable segments

TEST(Expandable, MapsWholePagesAndSplitsToTheByte) {
  Model m({.conf = kExpandable});
  const BlockId a = m.Take(19 * kMiB + 512);
  EXPECT_EQ(m.Calls(), "+20");
  EXPECT_EQ(m.SizeOf(a), 19 * kMiB + 512) << "even a remainder of 1 MiB is split off";
  const BlockId b = m.Take(30 * kMiB);
  EXPECT_EQ(m.Calls(), "+40") << "30 MiB need 29 more than the tail has";
  EXPECT_EQ(m.At(b), m.At(a) + 19 * kMiB + 512) << "and begin in it";
  m.Take(512);
  EXPECT_EQ(m.Calls(), "+2") << "small pages are of 2 MiB";
  EXPECT_EQ(m.driver.reservations.size(), 2u) << "one a pool";
}

TEST(Expandable, EachStreamAndPoolHasAReservation) {
  Model m({.conf = kExpandable, .streams = {0, 7}, .pools = 2});
  m.Take(24 * kMiB, 0, 0);
  m.Take(24 * kMiB, 1, 0);
  m.Take(24 * kMiB, 0, 1);
  m.Take(24 * kMiB, 1, 0);
  EXPECT_EQ(m.driver.reservations.size(), 3u);
}

TEST(Expandable, EmptyCacheUnmapsThePagesThatLieWhollyInAFreeBlock) {
  Model m({.conf = kExpandable});
  m.Take(5 * kMiB);
  const BlockId b = m.Take(50 * kMiB);
  m.Take(2 * kMiB);
  m.Take(512);
  EXPECT_EQ(m.counters().reserved, 62 * kMiB);
  const Address base = m.driver.reservations.at(0);
  m.allocator.Free(b);
  m.allocator.ClearCalls();
  m.allocator.EmptyCache();
  // Free are 5 to 55 MiB; of the pages only that from 20 to 40 lies in it as a whole.
  ASSERT_EQ(m.allocator.calls().size(), 1u);
  EXPECT_EQ(m.allocator.calls()[0],
            (DriverCall{Action::kSegmentUnmap, base + 20 * kMiB, 20 * kMiB}));
  EXPECT_EQ(m.counters().reserved, 42 * kMiB);
  m.allocator.ClearCalls();
  EXPECT_EQ(m.At(m.Take(15 * kMiB)), base + 40 * kMiB) << "what is left behind the hole serves";
  EXPECT_EQ(m.At(m.Take(15 * kMiB)), base + 5 * kMiB) << "and before it, which could have grown";
  EXPECT_EQ(m.Calls(), "");
}

TEST(Expandable, AnUnmappedReservationGoesAndANewOneComes) {
  Model m({.conf = kExpandable});
  m.allocator.Free(m.Take(50 * kMiB));
  m.allocator.EmptyCache();
  EXPECT_EQ(m.Calls(), "+60 -60");
  EXPECT_EQ(m.driver.freed_reservations, m.driver.reservations);
  m.Take(50 * kMiB);
  EXPECT_EQ(m.driver.reservations.size(), 2u);
  EXPECT_EQ(m.counters().reserved, 60 * kMiB);
}

/// [20 used][20 hole][40 free][hole to the end]
struct Holed : Model {
  explicit Holed(const DeviceLimits& limits = {}) : Model({.conf = kExpandable, .limits = limits}) {
    Take(20 * kMiB);
    const BlockId b = Take(20 * kMiB);
    const BlockId c = Take(20 * kMiB);
    const BlockId d = Take(20 * kMiB);
    allocator.Free(b);
    allocator.EmptyCache();
    allocator.Free(c);
    allocator.Free(d);
    allocator.ClearCalls();
    base = driver.reservations.at(0);
  }
  Address base = 0;
};

TEST(Expandable, ARequestCrossesFreeBlocksBetweenHoles) {
  Holed one_hole;
  EXPECT_EQ(one_hole.At(one_hole.Take(50 * kMiB)), one_hole.base + 20 * kMiB);
  EXPECT_EQ(one_hole.Calls(), "+20");
  Holed two_holes;
  EXPECT_EQ(two_holes.At(two_holes.Take(70 * kMiB)), two_holes.base + 20 * kMiB);
  EXPECT_EQ(two_holes.Calls(), "+20 +20") << "hole by hole";
  EXPECT_EQ(two_holes.SizeOf(two_holes.Take(10 * kMiB)), 10 * kMiB);
  EXPECT_EQ(two_holes.Calls(), "") << "10 MiB of the last page are left";
}

TEST(Expandable, WhatWasMappedBeforeAHoleFailsStays) {
  Holed m({.capacity = 80 * kMiB});
  EXPECT_EQ(m.counters().reserved, 60 * kMiB);
  EXPECT_EQ(m.allocator.Allocate(70 * kMiB, 0, 0, true), kNone);
  EXPECT_EQ(m.Calls(), "+20");
  EXPECT_EQ(m.counters().reserved, 80 * kMiB);
  EXPECT_EQ(m.At(m.Take(60 * kMiB)), m.base + 20 * kMiB) << "free, and joined to the rest";
  EXPECT_EQ(m.Calls(), "");
}

TEST(Expandable, OneHoleIsMappedAsAWholeOrNotAtAll) {
  Model m({.conf = kExpandable, .limits = {.capacity = 50 * kMiB}});
  EXPECT_EQ(m.Take(45 * kMiB), kNone) << "three pages";
  EXPECT_EQ(m.Calls(), "");
  EXPECT_NE(m.Take(40 * kMiB), kNone);
  EXPECT_EQ(m.driver.reservations.size(), 1u) << "the addresses were kept";
}

TEST(Expandable, ARetryUnmapsAndMapsAnew) {
  Holed m({.capacity = 100 * kMiB});
  EXPECT_NE(m.Take(76 * kMiB), kNone) << "maps 20, then needs 20 more";
  EXPECT_EQ(m.Calls(), "+20 +20");
  Holed tight({.capacity = 81 * kMiB});
  EXPECT_EQ(tight.Take(76 * kMiB), kNone);
  EXPECT_EQ(tight.Calls(), "+20 -60") << "the retry takes its own mapping back too, in vain";
  EXPECT_EQ(tight.counters().reserved, 20 * kMiB);
}

TEST(Expandable, OfBlocksThatCouldGrowTheOneThatGrowsLeastIsTaken) {
  Model m({.conf = kExpandable});
  const BlockId a = m.Take(25 * kMiB);
  m.Take(35 * kMiB);
  const BlockId c = m.Take(20 * kMiB);
  const Address bounded = m.At(a);
  m.allocator.Free(a);
  m.allocator.Free(c);
  EXPECT_EQ(m.At(m.Take(20 * kMiB)), bounded) << "25 MiB, though 20 at the end would fit";
}

TEST(Expandable, TheLimitMeasuresTheSegmentAndThePageMayPassIt) {
  Model m({.conf = kExpandable, .limits = {.limit = 32 * kMiB}});
  EXPECT_NE(m.Take(12 * kMiB), kNone);
  EXPECT_NE(m.Take(12 * kMiB), kNone) << "20 held and 12 asked for are the limit";
  EXPECT_EQ(m.counters().reserved, 40 * kMiB);
  EXPECT_EQ(m.Take(18 * kMiB), kNone) << "16 MiB are free, yet 2 more may not come";
}

TEST(Expandable, ASecondReservationComesWhenTheFirstHasNoRoomInARow) {
  // 9/8 of 160 MiB: 180 MiB of addresses.
  Model m({.conf = kExpandable, .limits = {.total = 160 * kMiB}});
  EXPECT_EQ(m.allocator.ReservationSize(false), 180 * kMiB);
  const BlockId a = m.Take(100 * kMiB);
  m.Take(60 * kMiB);
  m.allocator.Free(a);
  m.allocator.EmptyCache();
  m.allocator.ClearCalls();
  const BlockId b = m.Take(120 * kMiB);
  ASSERT_EQ(m.driver.reservations.size(), 2u);
  EXPECT_EQ(m.At(b), m.driver.reservations[1]);
  EXPECT_EQ(m.Take(181 * kMiB), kNone) << "more addresses than any reservation has";
}

TEST(Expandable, TheFirstHoleByAddressIsFilled) {
  Holed m;
  EXPECT_NE(m.Take(40 * kMiB), kNone);  // the free part between the holes
  EXPECT_EQ(m.At(m.Take(15 * kMiB)), m.base + 20 * kMiB);
  EXPECT_EQ(m.Calls(), "+20");
}

TEST(Expandable, PrivatePoolsExpandFromTwoFiveOn) {
  const auto action = [](int minor) {
    Model m({.conf = kExpandable, .torch = {2, minor}, .pools = 2});
    m.Take(24 * kMiB, 0, 1);
    return m.allocator.calls().at(0).action;
  };
  EXPECT_EQ(action(4), Action::kSegmentAlloc);
  EXPECT_EQ(action(5), Action::kSegmentMap);
  EXPECT_EQ(action(15), Action::kSegmentMap);
}

// ---- what was there before a record

TEST(Seed, PiecesAreInUseAndTheRestIsFree) {
  Model m;
  const auto ids = m.allocator.Seed(
      {.address = 0x1000000000,
       .size = 20 * kMiB,
       .pieces = {{0x1000000000 + 2 * kMiB, 4 * kMiB}, {0x1000000000 + 6 * kMiB, 2 * kMiB}}});
  ASSERT_EQ(ids.size(), 2u);
  EXPECT_EQ(m.counters().allocated, 6 * kMiB);
  EXPECT_EQ(m.counters().reserved, 20 * kMiB);
  EXPECT_EQ(m.counters().peak_reserved, 20 * kMiB);
  EXPECT_EQ(m.counters().driver_allocations, 0) << "nothing was asked for in this record";
  EXPECT_EQ(m.At(m.Take(2 * kMiB)), 0x1000000000u);
  m.allocator.Free(ids[0]);
  m.allocator.Free(ids[1]);
  EXPECT_TRUE(m.allocator.Serves(18 * kMiB, 0, 0));
}

TEST(Seed, APieceThatWaitsHasATicket) {
  Model m;
  const auto ids = m.allocator.Seed(
      {.address = 0x1000000000,
       .size = 24 * kMiB,
       .pieces = {{.address = 0x1000000000, .size = 24 * kMiB, .state = State::kPending}}});
  EXPECT_EQ(m.counters().allocated, 0);
  EXPECT_FALSE(m.allocator.Serves(24 * kMiB, 0, 0));
  m.allocator.CompleteFree(ids.at(0));
  EXPECT_TRUE(m.allocator.Serves(24 * kMiB, 0, 0));
}

TEST(Seed, APieceThatContradictsIsLeftOut) {
  Model m;
  const auto ids = m.allocator.Seed({.address = 0x1000000000,
                                     .size = 20 * kMiB,
                                     .pieces = {{0x1000000000, 4 * kMiB},
                                                {0x1000000000 + 2 * kMiB, 4 * kMiB},
                                                {0x1000000000 + 18 * kMiB, 4 * kMiB},
                                                {0x1000000000 + 6 * kMiB, 0},
                                                {0x1000000000 + 6 * kMiB, 2 * kMiB}}});
  ASSERT_EQ(ids.size(), 5u);
  EXPECT_EQ(ids[1], kNone);
  EXPECT_EQ(ids[2], kNone);
  EXPECT_EQ(ids[3], kNone);
  EXPECT_NE(ids[4], kNone);
  EXPECT_EQ(m.counters().allocated, 6 * kMiB);
  EXPECT_TRUE(m.allocator.Serves(12 * kMiB, 0, 0));
}

TEST(Seed, ExpandableHolesAreNotHeld) {
  Model m({.conf = kExpandable});
  const Address base = 0x302000000;
  m.allocator.Seed({.address = base,
                    .size = 200 * kMiB,
                    .expandable = true,
                    .pieces = {{base, 20 * kMiB},
                               {base + 20 * kMiB, 20 * kMiB, State::kUnmapped},
                               {base + 60 * kMiB, 140 * kMiB, State::kUnmapped}}});
  EXPECT_EQ(m.counters().reserved, 40 * kMiB);
  EXPECT_EQ(m.At(m.Take(50 * kMiB)), base + 20 * kMiB);
  EXPECT_EQ(m.Calls(), "+20 +20");
  EXPECT_EQ(m.driver.reservations.size(), 0u);
}

TEST(Seed, ExpandableBlocksDoNotServeOnceTheSettingIsOff) {
  Model m;
  m.allocator.Seed({.address = 0x302000000, .size = 40 * kMiB, .expandable = true});
  m.allocator.Seed({.address = 0x1000000000, .size = 44 * kMiB});
  EXPECT_EQ(m.At(m.Take(30 * kMiB)), 0x1000000000u);
  EXPECT_FALSE(m.allocator.Serves(30 * kMiB, 0, 0));
}

/// Free blocks of one size in one segment must stay apart: a list that confuses them hands out
/// memory twice.
TEST(Seed, EqualFreeBlocksOfOneSegmentAreToldApart) {
  for (const int minor : {11, 12, 13}) {
    for (const int freed : {0, 1, 2}) {
      Model m({.torch = {2, minor}});
      const Address base = 0x1000000000;
      // [2 used][2 free][2 used][2 free][12 used]
      const auto ids = m.allocator.Seed(
          {.address = base,
           .size = 20 * kMiB,
           .pieces = {
               {base, 2 * kMiB}, {base + 4 * kMiB, 2 * kMiB}, {base + 8 * kMiB, 12 * kMiB}}});
      m.allocator.Free(ids.at(static_cast<std::size_t>(freed)));
      std::vector<std::pair<Address, Bytes>> taken;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        if (i != static_cast<std::size_t>(freed)) {
          taken.emplace_back(m.At(ids[i]), m.SizeOf(ids[i]));
        }
      }
      while (m.allocator.Serves(2 * kMiB, 0, 0)) {
        const BlockId block = m.Take(2 * kMiB);
        taken.emplace_back(m.At(block), m.SizeOf(block));
      }
      std::sort(taken.begin(), taken.end());
      Address at = base;
      for (const auto& [address, size] : taken) {
        EXPECT_EQ(address, at) << "2." << minor << ", freed " << freed;
        at = address + static_cast<Address>(size);
      }
      EXPECT_EQ(at, base + 20 * kMiB);
    }
  }
}

}  // namespace
}  // namespace plimsoll

#include "allocator/model/caching_allocator.h"

#include <gtest/gtest.h>

#include "allocator/replay/model_for_tests.h"

namespace plimsoll::caching_allocator_test {
namespace {

using testing_model::Model;
using BlockId = CachingAllocator::BlockId;
using State = CachingAllocator::State;

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

}  // namespace
}  // namespace plimsoll::caching_allocator_test

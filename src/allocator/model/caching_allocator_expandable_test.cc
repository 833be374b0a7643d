#include "allocator/model/caching_allocator.h"

#include <gtest/gtest.h>

#include "allocator/replay/model_for_tests.h"

namespace plimsoll::caching_allocator_expandable_test {
namespace {

using testing_model::Model;
using BlockId = CachingAllocator::BlockId;
constexpr BlockId kNone = CachingAllocator::kNone;
constexpr const char* kExpandable = "expandable_segments:True";

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

}  // namespace
}  // namespace plimsoll::caching_allocator_expandable_test

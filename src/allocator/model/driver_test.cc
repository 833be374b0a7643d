#include "allocator/model/driver.h"

#include <gtest/gtest.h>

namespace plimsoll::driver_test {
namespace {

constexpr Address kA = 0x7e1000000000;
constexpr Address kB = 0x7e2000000000;

Timeline Recorded(std::vector<std::pair<Address, Bytes>> segments) {
  Timeline t;
  t.streams = {0};
  for (const auto& [address, size] : segments) {
    t.events.push_back({.address = address, .size = size, .action = Action::kSegmentAlloc});
  }
  return t;
}

TEST(AssumedDriver, TheNextSegmentOfASizeTakesTheNextRecordedAddressOfIt) {
  const Timeline t = Recorded({{kB, 20 * kMiB}, {kA, 24 * kMiB}, {kA + kGiB, 20 * kMiB}});
  AssumedDriver driver(t);
  EXPECT_EQ(driver.NewSegment(24 * kMiB), kA);
  EXPECT_EQ(driver.NewSegment(20 * kMiB), kB);
  EXPECT_EQ(driver.NewSegment(20 * kMiB), kA + kGiB);
}

TEST(AssumedDriver, OthersLieBelowTheRecordInRegionsOfThirtyTwoMebibytes) {
  const Timeline t = Recorded({{kA, 20 * kMiB}});
  AssumedDriver driver(t);
  EXPECT_EQ(driver.NewSegment(64 * kMiB), kA - 64 * kMiB);
  EXPECT_EQ(driver.NewSegment(33 * kMiB), kA - 128 * kMiB) << "at a multiple of 32 MiB";
  // Smaller ones fill a region upward.
  EXPECT_EQ(driver.NewSegment(2 * kMiB), kA - 160 * kMiB);
  EXPECT_EQ(driver.NewSegment(2 * kMiB), kA - 158 * kMiB);
  EXPECT_EQ(driver.NewSegment(30 * kMiB), kA - 192 * kMiB)
      << "28 MiB are left, which is too little";
}

TEST(AssumedDriver, AnAddressInUseIsNotGivenAgain) {
  const Timeline t = Recorded({{kA, 20 * kMiB}, {kA + 2 * kMiB, 24 * kMiB}, {kA, 24 * kMiB}});
  AssumedDriver driver(t);
  EXPECT_EQ(driver.NewSegment(20 * kMiB), kA);
  EXPECT_LT(driver.NewSegment(24 * kMiB), kA) << "its recorded place is taken";
  driver.FreeSegment(kA, 20 * kMiB);
  EXPECT_EQ(driver.NewSegment(24 * kMiB), kA) << "free again";
}

TEST(AssumedDriver, ReservationsFollowOneAnother) {
  AssumedDriver driver(Timeline{});
  const Address first = driver.NewReservation({.size = 161060 * kMiB});
  EXPECT_EQ(first, 0x302000000u);
  // As seen on an H200: 161,088 MiB further, the next multiple of 32 MiB.
  EXPECT_EQ(driver.NewReservation({.size = 100 * kMiB, .small = true}), first + 161088 * kMiB);
}

TEST(AssumedDriver, SegmentsNeverOverlap) {
  Timeline t = Recorded({{kA, 20 * kMiB}, {kA + 10 * kMiB, 40 * kMiB}, {0x1000, 20 * kMiB}});
  t.segments.push_back({.address = kA + 5 * kMiB, .size = 2 * kMiB});
  AssumedDriver driver(t);
  std::vector<std::pair<Address, Address>> ranges;
  for (int i = 0; i < 200; ++i) {
    const Bytes size = std::vector<Bytes>{2, 20, 40, 90, 2}[static_cast<std::size_t>(i % 5)] * kMiB;
    const Address at = driver.NewSegment(size);
    ranges.emplace_back(at, at + static_cast<Address>(size));
  }
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    EXPECT_LE(ranges[i - 1].second, ranges[i].first) << i;
  }
}

TEST(AssumedDriver, WhatIsHeldFromBeforeIsNotGivenAgain) {
  const Timeline t = Recorded({{kA, 20 * kMiB}, {kB, 20 * kMiB}});
  AssumedDriver driver(t);
  driver.Occupy(kA, 20 * kMiB, false);
  EXPECT_EQ(driver.NewSegment(20 * kMiB), kB) << "the next of that size";
  driver.Occupy(0x302000000, 100 * kGiB, true);
  EXPECT_GE(driver.NewReservation({.size = kGiB}), 0x302000000 + 100 * kGiB);
}

/// A record may claim to hold a pebibyte, just where fresh segments would lie.
TEST(AssumedDriver, AHugeObstacleIsPassedAtOnce) {
  const Timeline t = Recorded({{kA, 20 * kMiB}});
  AssumedDriver driver(t);
  for (int i = 0; i < 64; ++i) driver.Occupy(Address(i) << 50, Bytes{1} << 50, false);
  const Address at = driver.NewSegment(64 * kMiB);
  EXPECT_GE(at, Address{64} << 50);
}

TEST(DriverMicroseconds, AreThoseThatWereMeasured) {
  const auto near = [](Action action, Bytes size, double measured) {
    EXPECT_NEAR(DriverMicroseconds(action, size, 20 * kMiB), measured, 0.35 * measured + 5) << size;
  };
  near(Action::kSegmentAlloc, 2 * kMiB, 31);
  near(Action::kSegmentAlloc, 100 * kMiB, 50);
  near(Action::kSegmentAlloc, 2000 * kMiB, 187);
  near(Action::kSegmentAlloc, 8000 * kMiB, 610);
  near(Action::kSegmentFree, 2 * kMiB, 27);
  near(Action::kSegmentFree, 100 * kMiB, 60);
  near(Action::kSegmentFree, 2000 * kMiB, 534);
  near(Action::kSegmentFree, 8000 * kMiB, 2807);
  near(Action::kSegmentMap, 20 * kMiB, 50);
  near(Action::kSegmentUnmap, 40 * kMiB, 80);
  EXPECT_EQ(DriverMicroseconds(Action::kAlloc, 20 * kMiB, 20 * kMiB), 0);
}

}  // namespace
}  // namespace plimsoll::driver_test

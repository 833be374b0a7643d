#include "timeline/vet.h"

#include <gtest/gtest.h>

#include "timeline/limits.h"

namespace plimsoll::vet_test {
namespace {

constexpr Address kEnd = ~Address{0};
constexpr Bytes kMiB = 1 << 20;

TEST(DeviceRange, EndsWithinTheAddressSpace) {
  EXPECT_TRUE(IsDeviceRange(0, 0));
  EXPECT_TRUE(IsDeviceRange(0x7f2000000000, 80 * 1024 * kMiB));
  EXPECT_TRUE(IsDeviceRange(0xffffb80000000000, 80 * 1024 * kMiB)) << "some drivers begin there";
  EXPECT_FALSE(IsDeviceRange(kEnd, 1));
  EXPECT_FALSE(IsDeviceRange(kEnd - 4095, 4096));
  EXPECT_FALSE(IsDeviceRange(0, -1));
  EXPECT_FALSE(IsDeviceRange(0, kLargestSize + 1));
}

Recording One(Timeline timeline) {
  timeline.streams = {0};
  Recording recording;
  recording.timelines.push_back(std::move(timeline));
  return recording;
}

TEST(TakeOutImpossible, EventsKeepTheirPlace) {
  Timeline t;
  t.events = {{.address = 4096, .size = 512, .action = Action::kAlloc},
              {.address = kEnd - 100, .size = kMiB, .action = Action::kSegmentAlloc},
              {.address = 0, .size = -5, .action = Action::kFreeCompleted},
              {.address = kEnd, .size = 512, .action = Action::kOutOfMemory},
              {.size = 1, .time_us = INT64_MIN, .action = Action::kAlloc}};
  Recording recording = One(std::move(t));
  EXPECT_NE(recording.timelines[0].Validate(), std::nullopt);
  TakeOutImpossible(recording);
  const Timeline& vetted = recording.timelines[0];
  EXPECT_EQ(vetted.Validate(), std::nullopt);
  ASSERT_EQ(vetted.events.size(), 5u);
  EXPECT_EQ(vetted.events[0].action, Action::kAlloc);
  EXPECT_EQ(vetted.events[1].action, Action::kOther);
  EXPECT_EQ(vetted.events[2].action, Action::kOther);
  EXPECT_EQ(vetted.events[3].action, Action::kOutOfMemory);
  EXPECT_EQ(vetted.events[4].time_us, -kLatestTime);
  EXPECT_EQ(recording.skipped.at("ranges of addresses that no device has"), 2);
}

TEST(TakeOutImpossible, SegmentsGoWithTheirBlocks) {
  Timeline t;
  t.blocks = {{.address = kEnd - 8, .size = 512},
              {.address = 4096, .size = 512},
              {.address = kEnd - 8, .size = 512},
              {.address = 8192, .size = 512}};
  t.segments = {{.address = kEnd - 8, .size = kMiB, .first_block = 0, .block_count = 1},
                {.address = 4096, .size = kMiB, .first_block = 1, .block_count = 3}};
  Recording recording = One(std::move(t));
  TakeOutImpossible(recording);
  const Timeline& vetted = recording.timelines[0];
  EXPECT_EQ(vetted.Validate(), std::nullopt);
  ASSERT_EQ(vetted.segments.size(), 1u);
  EXPECT_EQ(vetted.segments[0].first_block, 0u);
  EXPECT_EQ(vetted.segments[0].block_count, 2u);
  EXPECT_EQ(vetted.blocks[1].address, 8192u);
  EXPECT_EQ(recording.skipped.at("ranges of addresses that no device has"), 3);
}

}  // namespace
}  // namespace plimsoll::vet_test

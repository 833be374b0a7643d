#include "allocator/model/host_allocator.h"

#include <gtest/gtest.h>

namespace plimsoll::host_allocator_test {
namespace {

// Each as torch.cuda.memory.host_memory_stats() said it on an H200, PyTorch 2.11.
TEST(HostAllocator, BlocksArePowersOfTwoAndStay) {
  HostAllocator pinned({});
  const HostAllocator::Request first = pinned.Take(300 * kMiB);
  EXPECT_EQ(pinned.held(), 512 * kMiB);
  EXPECT_EQ(pinned.asked(), 300 * kMiB);
  pinned.Give(first);
  EXPECT_EQ(pinned.held(), 512 * kMiB);
  EXPECT_EQ(pinned.asked(), 0);
  // A block of another size does not serve.
  pinned.Take(200 * kMiB);
  EXPECT_EQ(pinned.held(), 768 * kMiB);
  pinned.Take(260 * kMiB);
  EXPECT_EQ(pinned.held(), 768 * kMiB);
  pinned.Take(4);
  EXPECT_EQ(pinned.held(), 768 * kMiB + 4);
}

TEST(HostAllocator, SettingsChangeIt) {
  HostAllocator exact({.max_round_threshold = 64 * kMiB, .max_cached_size = 128 * kMiB});
  const HostAllocator::Request large = exact.Take(300 * kMiB);
  EXPECT_EQ(exact.held(), 300 * kMiB);
  exact.Give(large);
  EXPECT_EQ(exact.held(), 0);
  exact.Give(large);
  EXPECT_EQ(exact.held(), 0);
  exact.Give(exact.Take(33 * kMiB));
  EXPECT_EQ(exact.held(), 64 * kMiB);
  HostAllocator reserved({.reserve_segment_size = kGiB});
  EXPECT_EQ(reserved.held(), 0);
  reserved.Take(300 * kMiB);
  EXPECT_EQ(reserved.held(), kGiB);
  reserved.Take(600 * kMiB);
  EXPECT_EQ(reserved.held(), 2 * kGiB);
}

}  // namespace
}  // namespace plimsoll::host_allocator_test

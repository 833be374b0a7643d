#include "allocator/model/caching_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "allocator/replay/model_for_tests.h"

namespace plimsoll::caching_allocator_seed_test {
namespace {

using testing_model::Model;
using BlockId = CachingAllocator::BlockId;
using State = CachingAllocator::State;
constexpr BlockId kNone = CachingAllocator::kNone;
constexpr const char* kExpandable = "expandable_segments:True";

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
}  // namespace plimsoll::caching_allocator_seed_test

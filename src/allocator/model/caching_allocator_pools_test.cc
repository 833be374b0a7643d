#include "allocator/model/caching_allocator.h"

#include <gtest/gtest.h>

#include "allocator/replay/model_for_tests.h"

namespace plimsoll::caching_allocator_pools_test {
namespace {

using testing_model::Model;
using BlockId = CachingAllocator::BlockId;
using State = CachingAllocator::State;
constexpr BlockId kNone = CachingAllocator::kNone;

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

}  // namespace
}  // namespace plimsoll::caching_allocator_pools_test

#include "allocator/replay/fragmentation.h"

#include <gtest/gtest.h>

#include <set>

#include "allocator/replay/model_for_tests.h"

namespace plimsoll::fragmentation_test {
namespace {

using testing_model::Load;
using testing_model::ModelSetup;
using testing_model::RecordedJob;
using testing_model::Recorder;
using testing_model::RecordLoad;
using Handle = Recorder::Handle;

/// What is held after request `last` of a replay under the recorded settings, for a request of this
/// stream and pool.
Fragmentation After(const RecordedJob& job, std::size_t last, std::uint16_t stream = 0,
                    std::uint8_t pool = 0) {
  const ReplayOptions options{.rules = job.verified.rules, .limits = job.verified.limits};
  AssumedDriver driver(job.timeline);
  Replayer replayer(job.workload(), options, driver);
  replayer.Run(last);
  return Fragments(replayer, job.ledger, {.stream = stream, .pool = pool});
}

constexpr std::size_t kEnd = static_cast<std::size_t>(-1);

/// At the end of a record.
Fragmentation AtEnd(Recorder&& recorder, std::uint16_t stream = 0, std::uint8_t pool = 0) {
  return After(RecordedJob(std::move(recorder)), kEnd, stream, pool);
}

Bytes Sum(const Fragmentation& f) {
  Bytes sum = f.requested;
  for (const Bytes waste : f.waste) sum += waste;
  return sum;
}

/// The one waste that there is, beside the one that is looked for.
void ExpectOnly(const Fragmentation& f, Bytes requested, Waste waste, Bytes bytes) {
  EXPECT_EQ(f.requested, requested);
  EXPECT_EQ(f[waste], bytes) << WasteName(waste);
  EXPECT_EQ(Sum(f), f.reserved);
  EXPECT_EQ(f.reserved, requested + bytes) << "there is other waste too";
}

TEST(Fragmentation, ANewAllocatorHasNone) {
  const Fragmentation f = AtEnd(Recorder({}));
  EXPECT_EQ(f.reserved, 0);
  EXPECT_EQ(Sum(f), 0);
  EXPECT_TRUE(f.pinned.empty());
}

TEST(Fragmentation, Rounding) {
  Recorder r({.conf = "roundup_power2_divisions:4"});
  r.Allocate(33 * kMiB);
  ExpectOnly(AtEnd(std::move(r)), 33 * kMiB, Waste::kRounding, 7 * kMiB);
}

TEST(Fragmentation, TailsThatStayWithTheirBlock) {
  Recorder r({});
  r.Allocate(19 * kMiB);
  ExpectOnly(AtEnd(std::move(r)), 19 * kMiB, Waste::kTails, kMiB);
}

TEST(Fragmentation, TheRestOfAnOversizeBlockIsATail) {
  Recorder r({.conf = "max_split_size_mb:64"});
  r.Free(r.Allocate(80 * kMiB));
  r.Allocate(66 * kMiB);
  ExpectOnly(AtEnd(std::move(r)), 66 * kMiB, Waste::kTails, 14 * kMiB);
}

TEST(Fragmentation, FreesThatWait) {
  Recorder r({.streams = {0, 7}});
  r.RequestFree(r.Allocate(24 * kMiB));
  ExpectOnly(AtEnd(std::move(r)), 0, Waste::kPending, 24 * kMiB);
}

TEST(Fragmentation, SmallSegments) {
  Recorder r({});
  r.Allocate(1024);
  ExpectOnly(AtEnd(std::move(r)), 1024, Waste::kSmallSegments, 2 * kMiB - 1024);
}

TEST(Fragmentation, SegmentsThatSeveralShare) {
  Recorder r({});
  r.Allocate(5 * kMiB);
  ExpectOnly(AtEnd(std::move(r)), 5 * kMiB, Waste::kSharedSegments, 15 * kMiB);
  Recorder larger({.conf = "large_segment_size_mb:40"});
  larger.Allocate(5 * kMiB);
  ExpectOnly(AtEnd(std::move(larger)), 5 * kMiB, Waste::kSharedSegments, 35 * kMiB);
}

TEST(Fragmentation, LargeSegmentsThatABlockPins) {
  Recorder r({});
  r.Free(r.Allocate(100 * kMiB));
  r.Allocate(30 * kMiB);
  ExpectOnly(AtEnd(std::move(r)), 30 * kMiB, Waste::kPinned, 70 * kMiB);
}

TEST(Fragmentation, WholeSegmentsInTheCache) {
  Recorder r({});
  r.Free(r.Allocate(24 * kMiB));
  r.Free(r.Allocate(512));
  const Fragmentation f = AtEnd(std::move(r));
  ExpectOnly(f, 0, Waste::kCached, 26 * kMiB);
  EXPECT_TRUE(f.pinned.empty());
}

TEST(Fragmentation, WhatIsFreeForAnotherStream) {
  const auto record = [] {
    Recorder r({.streams = {0, 7}});
    r.Allocate(24 * kMiB, 0);
    r.Free(r.Allocate(26 * kMiB, 1));
    return r.Finish();
  };
  const RecordedJob job(record());
  ExpectOnly(After(job, kEnd, 0), 24 * kMiB, Waste::kOtherStreams, 26 * kMiB);
  ExpectOnly(After(job, kEnd, 1), 24 * kMiB, Waste::kCached, 26 * kMiB);
}

TEST(Fragmentation, WhatIsFreeInAnotherPool) {
  const auto record = [] {
    Recorder r({.torch = {2, 13}, .pools = 2});
    r.Free(r.Allocate(26 * kMiB, 0, 1));
    return r.Finish();
  };
  const RecordedJob job(record());
  ExpectOnly(After(job, kEnd, 0, 0), 0, Waste::kOtherPools, 26 * kMiB);
  ExpectOnly(After(job, kEnd, 0, 1), 0, Waste::kCached, 26 * kMiB);
}

TEST(Fragmentation, HolesOfExpandableSegmentsAreNotHeld) {
  Recorder r({.conf = "expandable_segments:True"});
  r.Allocate(20 * kMiB);
  const Handle b = r.Allocate(20 * kMiB);
  r.Allocate(15 * kMiB);
  r.Free(b);
  r.EmptyCache();
  const Fragmentation f = AtEnd(std::move(r));
  ExpectOnly(f, 35 * kMiB, Waste::kPinned, 5 * kMiB);
  ASSERT_EQ(f.pinned.size(), 1u) << "the run behind the hole alone has something free";
  EXPECT_EQ(f.pinned[0].segment_size, 20 * kMiB);
}

TEST(Fragmentation, ThePinningBlockIsTheOneThatLivesLongest) {
  Recorder r({});
  r.Free(r.Allocate(100 * kMiB));
  const Handle first = r.Allocate(12 * kMiB);
  const Handle longest = r.Allocate(11 * kMiB);
  const Handle third = r.Allocate(13 * kMiB);
  // After these five requests.
  r.Free(third);
  r.Free(first);
  r.Free(longest);
  const RecordedJob job(std::move(r));
  const Fragmentation f = After(job, 4);
  ASSERT_EQ(f.pinned.size(), 1u);
  EXPECT_EQ(f.pinned[0].free, 64 * kMiB);
  EXPECT_EQ(f.pinned[0].used, 36 * kMiB);
  EXPECT_EQ(f.pinned[0].segment_size, 100 * kMiB);
  EXPECT_EQ(job.ledger.allocations[f.pinned[0].allocation].requested, 11 * kMiB);
}

TEST(Fragmentation, WhatIsNeverFreedLivesLongest) {
  Recorder r({});
  r.Free(r.Allocate(100 * kMiB));
  r.Allocate(12 * kMiB);
  const Handle freed = r.Allocate(13 * kMiB);
  r.Free(freed);
  const RecordedJob job(std::move(r));
  const Fragmentation f = After(job, 3);
  EXPECT_EQ(job.ledger.allocations[f.pinned.at(0).allocation].requested, 12 * kMiB);
}

TEST(Fragmentation, WhatPinsMostComesFirst) {
  Recorder r({});
  const Handle a = r.Allocate(60 * kMiB);
  const Handle b = r.Allocate(100 * kMiB);
  const Handle c = r.Allocate(80 * kMiB);
  r.Free(a);
  r.Allocate(50 * kMiB);
  r.Free(b);
  r.Allocate(90 * kMiB);
  r.Free(c);
  r.Allocate(30 * kMiB);
  const Fragmentation f = AtEnd(std::move(r));
  ASSERT_EQ(f.pinned.size(), 3u);
  EXPECT_EQ(f.pinned[0].free, 50 * kMiB);
  EXPECT_EQ(f.pinned[1].free, 10 * kMiB);
  EXPECT_EQ(f.pinned[2].free, 10 * kMiB);
}

TEST(Fragmentation, TheLargestFreeBlockOfEachPoolAndStream) {
  Recorder r({.streams = {0, 7}});
  r.Free(r.Allocate(24 * kMiB, 0));
  r.Allocate(5 * kMiB, 0);
  r.Free(r.Allocate(40 * kMiB, 1));
  r.Allocate(512, 1);
  const Fragmentation f = AtEnd(std::move(r));
  ASSERT_EQ(f.largest_free.size(), 3u);
  for (const LargestFree& free : f.largest_free) {
    if (free.stream == 0) {
      EXPECT_FALSE(free.small);
      EXPECT_EQ(free.size, 19 * kMiB) << "of the 24 MiB five are in use";
      EXPECT_EQ(free.free, 19 * kMiB);
    } else {
      EXPECT_EQ(free.size, free.small ? 2 * kMiB - 512 : 40 * kMiB);
    }
  }
}

TEST(Fragmentation, EveryWasteHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < kWastes; ++i) names.insert(WasteName(static_cast<Waste>(i)));
  EXPECT_EQ(names.size(), kWastes);
}

/// Whatever happens: what was asked for and the wastes are all that is held.
TEST(Fragmentation, AddsUpAtEveryInstant) {
  const std::vector<ModelSetup> setups = {
      {.streams = {0, 9}},
      {.conf = "expandable_segments:True", .streams = {0, 9}},
      {.conf = "max_split_size_mb:24,roundup_power2_divisions:4"},
      {.torch = {2, 13}, .pools = 3},
  };
  for (const ModelSetup& setup : setups) {
    const Load load{.seed = 5, .requests = 250, .live = 150 * kMiB, .defer = 4, .empty_every = 60};
    const RecordedJob job(RecordLoad(setup, load, nullptr));
    const ReplayOptions options{.rules = job.verified.rules};
    AssumedDriver driver(job.timeline);
    Replayer replayer(job.workload(), options, driver);
    for (std::size_t i = 0; i < job.workload().requests.size(); ++i) {
      replayer.Run(i);
      const Request& request = job.workload().requests[i];
      const Fragmentation f = Fragments(replayer, job.ledger, request);
      ASSERT_EQ(Sum(f), f.reserved) << setup.conf << ", request " << i;
      ASSERT_EQ(f.reserved, replayer.allocator().counters().reserved);
      for (const Bytes waste : f.waste) ASSERT_GE(waste, 0);
      Bytes held = 0;
      const auto event = static_cast<Position>(request.event);
      for (const Allocation& a : job.ledger.allocations) held += a.HeldAt(event) ? a.requested : 0;
      if (request.kind == Request::Kind::kAllocate) {
        ASSERT_EQ(f.requested, held) << i;
      }
    }
  }
}

}  // namespace
}  // namespace plimsoll::fragmentation_test

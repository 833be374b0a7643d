#include "allocator/replay/replay.h"

#include <gtest/gtest.h>

#include "allocator/replay/model_for_tests.h"
#include "allocator/replay/replay_check.h"

namespace plimsoll::replay_test {
namespace {

using testing_model::CutBefore;
using testing_model::Load;
using testing_model::ModelSetup;
using testing_model::RecordedJob;
using testing_model::Recorder;
using testing_model::RecordLoad;
using Handle = Recorder::Handle;

/// A record that can be replayed; each replay is checked.
struct Job : RecordedJob {
  using RecordedJob::RecordedJob;

  ReplayResult Run(const ReplayOptions& options) const {
    ReplayLog log;
    const ReplayResult result = Replay(timeline, workload(), options, &log);
    EXPECT_EQ(CheckReplay(log, result.counters), std::nullopt);
    return result;
  }
  ReplayResult Run(const char* conf = "", const DeviceLimits& limits = {}) const {
    return Run(Options(conf, limits));
  }
};

/// A batch of 25 MiB, then one of 27: the second does not fit into what the first left.
Job GrowingBatch() {
  Recorder r({});
  r.Free(r.Allocate(25 * kMiB));
  r.Free(r.Allocate(27 * kMiB));
  return Job(std::move(r));
}

TEST(Replay, OtherSettingsHoldMoreOrLess) {
  const Job job = GrowingBatch();
  EXPECT_EQ(job.Run().counters.peak_reserved, 54 * kMiB);
  const ReplayResult expandable = job.Run("expandable_segments:True");
  EXPECT_EQ(expandable.counters.peak_reserved, 40 * kMiB) << "two pages of 20 MiB";
  EXPECT_EQ(expandable.counters.driver_allocations, 1);
  EXPECT_EQ(job.Run("roundup_power2_divisions:4").counters.peak_reserved, 28 * kMiB)
      << "both are rounded to 28";
}

TEST(Replay, ASettingCanMakeThingsWorse) {
  Recorder r({});
  r.Free(r.Allocate(100 * kMiB));
  r.Allocate(30 * kMiB);
  r.Allocate(60 * kMiB);
  const Job job(std::move(r));
  EXPECT_EQ(job.Run().counters.peak_reserved, 100 * kMiB);
  EXPECT_EQ(job.Run("max_split_size_mb:64").counters.peak_reserved, 190 * kMiB);
}

TEST(Replay, AnotherReleaseTakesOtherBlocks) {
  // Of two free segments of 24 MiB the lower is taken here, the older one from 2.13 on; only one of
  // them is needed whole later.
  Recorder r({});
  const Handle a = r.Allocate(24 * kMiB);
  const Handle b = r.Allocate(24 * kMiB);
  r.Free(a);
  r.Free(b);
  r.Allocate(24 * kMiB);
  const Job job(std::move(r));
  ReplayOptions options = job.Options();
  options.rules.version = RulesOf({2, 15});
  EXPECT_EQ(job.Run(options).counters.peak_reserved, 48 * kMiB);
}

TEST(Replay, RunsOutAtTheEventThatFindsNoRoom) {
  const Job job = GrowingBatch();
  const ReplayResult r = job.Run("", {.capacity = 27 * kMiB});
  EXPECT_FALSE(r.fits);
  ASSERT_TRUE(r.oom_event.has_value());
  EXPECT_EQ(job.timeline.events[*r.oom_event].action, Action::kAlloc);
  EXPECT_EQ(job.timeline.events[*r.oom_event].size, 27 * kMiB);
  EXPECT_EQ(r.oom_requested, 27 * kMiB);
  EXPECT_EQ(r.counters.retries, 1);
  EXPECT_EQ(r.counters.reserved, 0) << "the retry gave back what it had";
  EXPECT_TRUE(job.Run("", {.capacity = 28 * kMiB}).fits) << "with a retry it does";
}

TEST(Replay, TheRequestThatMakesThePeakIsNamed) {
  Recorder r({});
  r.Allocate(24 * kMiB);
  r.Free(r.Allocate(100 * kMiB));
  r.Allocate(30 * kMiB);
  const Job job(std::move(r));
  const ReplayResult result = job.Run();
  EXPECT_EQ(job.workload().requests[result.peak_request].size, 100 * kMiB);
}

TEST(Replay, EmptyingTheCacheBeforeAnEvent) {
  Recorder r({});
  r.Free(r.Allocate(100 * kMiB));
  const std::size_t between = r.events();
  r.Allocate(40 * kMiB);
  r.Allocate(40 * kMiB);
  const Job job(std::move(r));
  ReplayOptions options = job.Options();
  options.empty_cache_before = {static_cast<EventIndex>(between)};
  const ReplayResult emptied = job.Run(options);
  EXPECT_EQ(emptied.counters.given_back, 100 * kMiB);
  EXPECT_EQ(emptied.counters.reserved, 80 * kMiB);
  EXPECT_EQ(emptied.counters.retries, 0);
  EXPECT_EQ(job.Run().counters.given_back, 0);
  // Several that fall between two requests are one.
  options.empty_cache_before = {0, 1, 2, static_cast<EventIndex>(between), 100000};
  EXPECT_EQ(job.Run(options).counters.given_back, 100 * kMiB);
}

TEST(Replay, CanBeStoppedLookedAtAndGoOn) {
  const Job job = GrowingBatch();
  const ReplayOptions options = job.Options();
  AssumedDriver driver(job.timeline);
  Replayer replayer(job.workload(), options, driver);
  replayer.Run(0);
  EXPECT_EQ(replayer.allocator().counters().allocated, 26 * kMiB) << "with a tail of 1 MiB";
  const std::vector<std::uint32_t> owners = replayer.Owners();
  EXPECT_EQ(std::count(owners.begin(), owners.end(), 0u), 1);
  EXPECT_EQ(std::count(owners.begin(), owners.end(), Ledger::kNoAllocation),
            static_cast<std::ptrdiff_t>(owners.size()) - 1);
  replayer.Run(2);
  EXPECT_EQ(replayer.allocator().counters().allocated, 28 * kMiB);
  replayer.Run();
  EXPECT_EQ(replayer.allocator().counters().allocated, 0);
  EXPECT_EQ(replayer.result().counters.peak_reserved, 54 * kMiB);
}

TEST(Replay, AFreeThatWaitsHoldsItsMemory) {
  Recorder r({.streams = {0, 7}});
  const Handle a = r.Allocate(24 * kMiB);
  r.RequestFree(a);
  r.Allocate(22 * kMiB);
  r.CompleteFree(a);
  r.Allocate(20 * kMiB);
  const Job job(std::move(r));
  EXPECT_EQ(job.Run().counters.peak_reserved, 46 * kMiB);
  const ReplayResult tight = job.Run("", {.capacity = 44 * kMiB});
  EXPECT_TRUE(tight.fits) << "a retry waits for it; its completion then does nothing";
  EXPECT_EQ(tight.counters.retries, 1);
}

// ---- refusals

/// 60 MiB held of 100; 50 more are refused. Then it goes on, or not.
Job Refused(bool goes_on) {
  const ModelSetup setup = {.limits = {.limit = 100 * kMiB}};
  Recorder r(setup);
  const Handle a = r.Allocate(60 * kMiB);
  EXPECT_EQ(r.Allocate(50 * kMiB), Recorder::kRefused);
  if (goes_on) {
    r.Free(a);
    r.Allocate(50 * kMiB);
  }
  return Job(std::move(r), {.limit = setup.limits.limit});
}

TEST(ReplayRefusals, OneThatTheJobSurvivedMayBeRefusedAgain) {
  const Job job = Refused(true);
  const ReplayResult same = job.Run("", {.limit = 100 * kMiB});
  EXPECT_TRUE(same.fits);
  EXPECT_EQ(same.refusals_served, 0);
  EXPECT_EQ(same.counters.refused, 1);
}

TEST(ReplayRefusals, OneThatIsServedIsGivenBackAtOnce) {
  const Job job = Refused(true);
  const ReplayResult more = job.Run("", {.limit = 200 * kMiB});
  EXPECT_TRUE(more.fits);
  EXPECT_EQ(more.refusals_served, 1);
  EXPECT_EQ(more.counters.peak_allocated, 110 * kMiB);
  EXPECT_EQ(more.counters.allocated, 50 * kMiB);
}

TEST(ReplayRefusals, TheOneThatEndedTheRunMustBeServed) {
  const Job job = Refused(false);
  ASSERT_TRUE(job.workload().fatal.has_value());
  const ReplayResult same = job.Run("", {.limit = 100 * kMiB});
  EXPECT_FALSE(same.fits);
  EXPECT_EQ(same.oom_requested, 50 * kMiB);
  const ReplayResult more = job.Run("", {.limit = 110 * kMiB});
  EXPECT_TRUE(more.fits);
  EXPECT_EQ(more.refusals_served, 1);
}

TEST(ReplayRefusals, WhatFollowsTheFatalOneIsNotReplayedOnceItIsServed) {
  Recorder r({.limits = {.limit = 100 * kMiB}});
  const Handle a = r.Allocate(60 * kMiB);
  EXPECT_EQ(r.Allocate(50 * kMiB), Recorder::kRefused);
  r.Free(a);  // the traceback unwinds
  const Job job(std::move(r), {.limit = 100 * kMiB});
  EXPECT_EQ(job.Run("", {.limit = 200 * kMiB}).counters.allocated, 60 * kMiB);
}

// ---- what is borrowed

/// 60 MiB held, 50 borrowed, and 30 more.
Workload Borrowing() {
  using Kind = Request::Kind;
  return {.requests = {{.size = 60 * kMiB, .allocation = 0, .event = 0, .kind = Kind::kAllocate},
                       {.size = 50 * kMiB, .allocation = 1, .event = 1, .kind = Kind::kBorrow},
                       {.size = 30 * kMiB, .allocation = 2, .event = 2, .kind = Kind::kAllocate}},
          .allocations = 3,
          .captures = {false},
          .streams = {0}};
}

TEST(ReplayBorrowing, IsGivenBackAtOnceAndCountsInThePeak) {
  ReplayLog log;
  const ReplayResult r = Replay(Timeline{}, Borrowing(), {}, &log);
  EXPECT_EQ(CheckReplay(log, r.counters), std::nullopt);
  EXPECT_TRUE(r.fits);
  EXPECT_EQ(r.done_without, 0);
  EXPECT_EQ(r.counters.peak_allocated, 110 * kMiB);
  EXPECT_EQ(r.counters.allocated, 90 * kMiB);
  EXPECT_EQ(r.counters.peak_reserved, 110 * kMiB) << "the last lies where the borrowed one lay";
}

TEST(ReplayBorrowing, ASearchEmptiesTheCacheAndIsNoLossWhereItIsRefused) {
  Workload searching = Borrowing();
  searching.requests[1].kind = Request::Kind::kSearch;
  ReplayLog log;
  const ReplayResult r = Replay(Timeline{}, searching, {}, &log);
  EXPECT_EQ(CheckReplay(log, r.counters), std::nullopt);
  EXPECT_EQ(r.counters.peak_reserved, 110 * kMiB);
  EXPECT_EQ(r.counters.reserved, 90 * kMiB) << "nothing is cached behind it";
  const ReplayOptions options{.limits = {.capacity = 100 * kMiB}};
  const ReplayResult tight = Replay(Timeline{}, searching, options);
  EXPECT_TRUE(tight.fits);
  EXPECT_EQ(tight.done_without, 0);
}

TEST(ReplayBorrowing, ARefusalIsSurvived) {
  ReplayLog log;
  const ReplayOptions options{.limits = {.capacity = 100 * kMiB}};
  const ReplayResult r = Replay(Timeline{}, Borrowing(), options, &log);
  EXPECT_EQ(CheckReplay(log, r.counters), std::nullopt);
  EXPECT_TRUE(r.fits);
  EXPECT_EQ(r.done_without, 1);
  EXPECT_EQ(r.refusals_served, 0);
  EXPECT_EQ(r.counters.peak_allocated, 90 * kMiB);
}

TEST(ReplayBorrowing, WhatComesAfterItMustStillFit) {
  const ReplayResult r = Replay(Timeline{}, Borrowing(), {.limits = {.capacity = 80 * kMiB}});
  EXPECT_FALSE(r.fits);
  EXPECT_EQ(r.done_without, 1);
  EXPECT_EQ(r.oom_requested, 30 * kMiB);
}

// ---- a start in the middle

/// Two blocks of 4 MiB from before, in one segment; one is freed, others come.
Job FromTheMiddle() {
  Recorder r({});
  const Handle a = r.Allocate(4 * kMiB);
  r.Allocate(4 * kMiB);
  const std::size_t cut = r.events();
  r.Free(a);
  r.Allocate(2 * kMiB);
  r.Allocate(30 * kMiB);
  Timeline t = r.Finish();
  CutBefore(t, cut);
  return Job(std::move(t));
}

TEST(ReplayMidRun, TheSegmentsFromBeforeAreKept) {
  const Job job = FromTheMiddle();
  const ReplayResult r = job.Run();
  EXPECT_EQ(r.counters.peak_reserved, 50 * kMiB);
  EXPECT_EQ(r.counters.allocated, 36 * kMiB);
  EXPECT_EQ(r.counters.driver_allocations, 1) << "the first segment is older than the record";
}

TEST(ReplayMidRun, UnderOtherSettingsTheBlocksFromBeforeAreAskedForAnew) {
  const Job job = FromTheMiddle();
  ASSERT_EQ(job.workload().earlier.size(), 2u);
  ReplayOptions options = job.Options("expandable_segments:True");
  options.keep_earlier_segments = false;
  const ReplayResult r = job.Run(options);
  EXPECT_TRUE(r.fits);
  EXPECT_EQ(r.counters.allocated, 36 * kMiB) << "and freed where the record frees them";
  EXPECT_EQ(r.counters.peak_reserved, 40 * kMiB);
  EXPECT_EQ(r.counters.driver_allocations, 2) << "a page for each";
}

/// A new segment must not come to lie where one from before the record still is.
TEST(ReplayMidRun, NewSegmentsKeepClearOfThoseFromBefore) {
  Recorder r({});
  r.Allocate(24 * kMiB);
  r.Allocate(26 * kMiB);
  const std::size_t cut = r.events();
  r.Allocate(24 * kMiB);
  r.Allocate(26 * kMiB);
  Timeline t = r.Finish();
  CutBefore(t, cut);
  const Job job(std::move(t));
  EXPECT_EQ(job.Run().counters.peak_reserved, 100 * kMiB);
}

/// 24 MiB in use and 30 cached from before; nothing more is asked for.
TEST(ReplayMidRun, OnASmallerDeviceTheCacheFromBeforeIsGone) {
  Recorder r({});
  const Handle a = r.Allocate(24 * kMiB);
  r.Free(r.Allocate(30 * kMiB));
  const std::size_t cut = r.events();
  r.Free(a);
  Timeline t = r.Finish();
  CutBefore(t, cut);
  const Job job(std::move(t));
  EXPECT_TRUE(job.Run("", {.capacity = 54 * kMiB}).fits);
  EXPECT_EQ(job.Run("", {.capacity = 54 * kMiB}).counters.given_back, 0);
  EXPECT_TRUE(job.Run("", {.capacity = 24 * kMiB}).fits) << "without what was only cached";
  EXPECT_FALSE(job.Run("", {.capacity = 22 * kMiB}).fits) << "more than that is in use";
  EXPECT_EQ(SmallestCapacity(job.timeline, job.workload(), job.Options()), 24 * kMiB);
}

// ---- the smallest capacity

TEST(SmallestCapacity, OfALineOfSegmentsIsTheirSum) {
  Recorder r({});
  for (int i = 0; i < 5; ++i) r.Allocate(24 * kMiB);
  const Job job(std::move(r));
  EXPECT_EQ(SmallestCapacity(job.timeline, job.workload(), job.Options()), 120 * kMiB);
}

TEST(SmallestCapacity, ARetryMakesDoWithLess) {
  const Job job = GrowingBatch();
  EXPECT_EQ(SmallestCapacity(job.timeline, job.workload(), job.Options()), 28 * kMiB);
}

TEST(SmallestCapacity, NoneWhereALimitForbidsItAnyway) {
  const Job job = GrowingBatch();
  EXPECT_EQ(SmallestCapacity(job.timeline, job.workload(), job.Options("", {.limit = 20 * kMiB})),
            std::nullopt);
}

TEST(SmallestCapacity, OfNothingIsNothing) {
  const Workload nothing{.captures = {false}, .streams = {0}};
  EXPECT_EQ(SmallestCapacity(Timeline{}, nothing, {}), 0);
}

TEST(SmallestCapacity, FitsThereAndNotTwoMebibytesBelow) {
  for (const char* conf : {"", "expandable_segments:True", "max_split_size_mb:24"}) {
    for (unsigned seed = 1; seed <= 6; ++seed) {
      const Load load{.seed = seed, .requests = 300, .live = 200 * kMiB, .defer = 5};
      const Job job(RecordLoad({.conf = conf, .streams = {0, 7}}, load, nullptr));
      const ReplayOptions options = job.Options(conf);
      const auto smallest = SmallestCapacity(job.timeline, job.workload(), options);
      ASSERT_TRUE(smallest.has_value()) << conf << seed;
      EXPECT_EQ(*smallest % (2 * kMiB), 0);
      EXPECT_GE(*smallest, job.ledger.peak_allocated - 2 * kMiB) << conf << seed;
      EXPECT_LE(*smallest, job.ledger.peak_reserved) << conf << seed;
      EXPECT_TRUE(job.Run(conf, {.capacity = *smallest}).fits) << conf << seed;
      EXPECT_FALSE(job.Run(conf, {.capacity = *smallest - 2 * kMiB}).fits) << conf << seed;
    }
  }
}

}  // namespace
}  // namespace plimsoll::replay_test

#include "allocator/replay/tune.h"

#include <gtest/gtest.h>

#include <algorithm>

#include <mutex>
#include <set>

#include "allocator/replay/model_for_tests.h"
#include "allocator/settings/settings.h"

namespace plimsoll::tune_test {
namespace {

using testing_model::Load;
using testing_model::RecordedJob;
using testing_model::Recorder;
using testing_model::RecordLoad;

AllocatorSettings Parsed(const char* conf, TorchVersion torch = {}) {
  return *ParseAllocatorSettings(conf, torch);
}

std::ptrdiff_t CountOf(const std::vector<AllocatorSettings>& list, const AllocatorSettings& s) {
  return std::count(list.begin(), list.end(), s);
}

/// A batch that grows from step to step, which wastes what the step before left.
RecordedJob GrowingJob() {
  Recorder r({});
  for (Bytes batch = 20; batch < 60; batch += 4) {
    const auto a = r.Allocate(batch * kMiB);
    const auto b = r.Allocate(batch * kMiB / 2);
    r.Free(a);
    r.Free(b);
  }
  return RecordedJob(std::move(r));
}

TuneResult TuneIt(const RecordedJob& job, const DeviceLimits& limits = {}) {
  return Tune(job.timeline, job.verified,
              {.limits = limits, .version = job.verified.rules.version});
}

TEST(TuneCandidates, TheRecordedSettingsComeFirstAndTheDefaultsOnce) {
  for (const char* conf : {"", "expandable_segments:True", "max_split_size_mb:100"}) {
    const auto list = TuneCandidates(Parsed(conf), RulesOf({2, 11}), true);
    EXPECT_EQ(list.front(), Parsed(conf));
    EXPECT_EQ(CountOf(list, AllocatorSettings{}), 1) << conf;
    EXPECT_EQ(CountOf(list, Parsed("expandable_segments:True")), 1) << conf;
    EXPECT_EQ(CountOf(list, Parsed("max_split_size_mb:128")), 1) << conf;
  }
}

TEST(TuneCandidates, NoneIsTriedTwice) {
  for (const bool limited : {true, false}) {
    const auto list = TuneCandidates({}, RulesOf({2, 15}), limited);
    for (const AllocatorSettings& s : list) EXPECT_EQ(CountOf(list, s), 1) << FormatSettings(s);
    EXPECT_GE(list.size(), 64u);
  }
}

TEST(TuneCandidates, EachCanBePutIntoTheEnvironmentOfItsRelease) {
  for (int minor = 4; minor <= 15; ++minor) {
    const TorchVersion torch{2, minor};
    for (const AllocatorSettings& s : TuneCandidates({}, RulesOf(torch), true)) {
      const std::string conf = FormatSettings(s);
      const Result<AllocatorSettings> read = ParseAllocatorSettings(conf, torch);
      ASSERT_TRUE(read.ok()) << torch.ToText() << " refuses " << conf;
      EXPECT_EQ(*read, s) << torch.ToText() << ": " << conf;
    }
  }
}

TEST(TuneCandidates, GarbageCollectionIsTriedOnlyWhereThereIsALimit) {
  const auto collects = [](const AllocatorSettings& s) {
    return s.garbage_collection_threshold > 0;
  };
  const auto without = TuneCandidates({}, RulesOf({2, 11}), false);
  EXPECT_TRUE(std::none_of(without.begin(), without.end(), collects));
  const auto with = TuneCandidates({}, RulesOf({2, 11}), true);
  EXPECT_TRUE(std::any_of(with.begin(), with.end(), collects));
}

TEST(Tune, TheBestIsNeverWorseThanTheDefaultsOrTheRecord) {
  for (const char* conf : {"", "expandable_segments:True", "max_split_size_mb:24"}) {
    for (unsigned seed = 1; seed <= 3; ++seed) {
      const Load load{.seed = seed, .requests = 250, .live = 150 * kMiB};
      const RecordedJob job(RecordLoad({.conf = conf}, load, nullptr));
      const TuneResult result = TuneIt(job);
      const auto reserved = [&](std::size_t row) {
        return result.rows[row].replayed.counters.peak_reserved;
      };
      EXPECT_EQ(result.rows[result.defaults].settings, AllocatorSettings{});
      EXPECT_EQ(result.rows[0].settings, Parsed(conf));
      EXPECT_EQ(reserved(0), job.ledger.peak_reserved) << "the record itself comes out as recorded";
      for (std::size_t i = 0; i < result.rows.size(); ++i) {
        EXPECT_LE(reserved(result.best), reserved(i)) << conf << seed;
        EXPECT_GE(reserved(i), job.ledger.peak_allocated - 150 * kMiB);
        EXPECT_EQ(result.rows[i].fault, std::nullopt) << FormatSettings(result.rows[i].settings);
        EXPECT_TRUE(result.rows[i].replayed.fits);
      }
      for (std::size_t i = 2; i < result.rows.size(); ++i) EXPECT_LE(reserved(i - 1), reserved(i));
    }
  }
}

TEST(Tune, FindsWhatHelps) {
  const TuneResult result = TuneIt(GrowingJob());
  EXPECT_TRUE(result.rows[result.best].settings.expandable_segments)
      << FormatSettings(result.rows[result.best].settings);
  EXPECT_NE(result.best, result.defaults);
}

TEST(Tune, SaysSoWhenTheDefaultsAreBest) {
  Recorder r({});
  for (int i = 0; i < 4; ++i) r.Allocate(40 * kMiB);
  const TuneResult result = TuneIt(RecordedJob(std::move(r)));
  EXPECT_EQ(result.best, result.defaults);
  EXPECT_EQ(result.simplest, result.defaults);
}

TEST(Tune, TheSimplestIsHardlyWorseThanTheBest) {
  const TuneResult result = TuneIt(GrowingJob());
  const auto reserved = [&](std::size_t row) {
    return double(result.rows[row].replayed.counters.peak_reserved);
  };
  EXPECT_LE(reserved(result.simplest), 1.01 * reserved(result.best));
}

TEST(Tune, WhatFitsIsBetterThanWhatDoesNot) {
  const RecordedJob job = GrowingJob();
  const TuneResult result = TuneIt(job, {.capacity = 90 * kMiB});
  EXPECT_TRUE(result.rows[result.best].replayed.fits);
  bool gone = false;
  for (std::size_t i = 1; i < result.rows.size(); ++i) {
    EXPECT_FALSE(gone && result.rows[i].replayed.fits) << "those that fit come first";
    gone |= !result.rows[i].replayed.fits;
  }
  const TuneResult none = TuneIt(job, {.capacity = 30 * kMiB});
  EXPECT_FALSE(none.rows[none.best].replayed.fits);
  for (const TuneRow& row : none.rows) {
    EXPECT_LE(row.replayed.oom_event, none.rows[none.best].replayed.oom_event);
  }
}

/// Candidates run side by side; each must come to what it comes to alone.
TEST(Tune, ManyThreadsComeToWhatOneDoes) {
  const Load load{.seed = 3, .requests = 300, .live = 200 * kMiB, .defer = 5};
  const RecordedJob job(RecordLoad({.streams = {0, 7}}, load, nullptr));
  const TuneResult first = TuneIt(job, {.limit = 260 * kMiB});
  const TuneResult second = TuneIt(job, {.limit = 260 * kMiB});
  ASSERT_EQ(first.rows.size(), second.rows.size());
  EXPECT_EQ(first.best, second.best);
  for (std::size_t i = 0; i < first.rows.size(); ++i) {
    const TuneRow& row = first.rows[i];
    EXPECT_EQ(row.settings, second.rows[i].settings);
    const ReplayResult alone = Replay(
        job.timeline, job.workload(),
        {.rules = {row.settings, job.verified.rules.version}, .limits = {.limit = 260 * kMiB}});
    EXPECT_EQ(row.replayed.counters.peak_reserved, alone.counters.peak_reserved);
    EXPECT_EQ(row.replayed.counters.retries, alone.counters.retries);
    EXPECT_EQ(row.DriverCalls(), alone.counters.driver_allocations + alone.counters.driver_frees);
    EXPECT_EQ(row.replayed.fits, alone.fits);
    EXPECT_EQ(row.replayed.oom_event, alone.oom_event);
  }
}

TEST(Tune, TellsHowFarItIs) {
  const RecordedJob job = GrowingJob();
  std::mutex mutex;
  std::set<std::size_t> seen;
  std::size_t total = 0;
  const TuneResult result = Tune(job.timeline, job.verified,
                                 {.limits = {},
                                  .version = job.verified.rules.version,
                                  .progress = [&](std::size_t done, std::size_t all) {
                                    const std::scoped_lock lock(mutex);
                                    seen.insert(done);
                                    total = all;
                                  }});
  EXPECT_EQ(total, result.rows.size());
  EXPECT_EQ(*seen.rbegin(), total);
}

TEST(Tune, CommonSettingsAreSomeOfAll) {
  AllocatorSettings recorded;
  recorded.max_split_size = 77 * kMiB;
  for (const bool limited : {false, true}) {
    const auto all = TuneCandidates(recorded, {}, limited);
    const auto common = CommonSettings(recorded, limited);
    EXPECT_EQ(common.front(), recorded);
    EXPECT_LE(common.size(), 8u);
    for (const AllocatorSettings& s : common) {
      EXPECT_NE(std::find(all.begin(), all.end(), s), all.end()) << FormatSettings(s);
    }
  }
}

}  // namespace
}  // namespace plimsoll::tune_test

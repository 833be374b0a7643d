#include "allocator/replay/verify.h"

#include <gtest/gtest.h>

#include <random>

#include "allocator/replay/fragmentation.h"
#include "allocator/replay/model_for_tests.h"
#include "allocator/replay/replay.h"
#include "allocator/replay/replay_check.h"

namespace plimsoll::verify_test {
namespace {

using testing_model::CutBefore;
using testing_model::Load;
using testing_model::ModelSetup;
using testing_model::Recorder;
using testing_model::RecordLoad;
constexpr Address kA = 0x1000000000;
constexpr Address kB = 0x2000000000;
constexpr Address kC = 0x3000000000;

/// A record in the making, as PyTorch 2.11 would write it: each call is one event.
class Story {
 public:
  Story() {
    t_.streams = {0, 77};
    t_.torch = "2.11";
    StackTable& s = t_.stacks;
    const FrameId frame =
        s.AddFrame({s.strings.Intern("empty_cache"), s.strings.Intern("torch/cuda/memory.py"), 1});
    const FrameId other = s.AddFrame({s.strings.Intern("f"), s.strings.Intern("train.py"), 1});
    empty_cache_ = s.AddStack(std::vector<FrameId>{frame});
    train_ = s.AddStack(std::vector<FrameId>{other});
  }
  Story& Segment(Address at, Bytes size) { return Add(Action::kSegmentAlloc, at, size); }
  Story& SegmentFree(Address at, Bytes size) { return Add(Action::kSegmentFree, at, size); }
  Story& Map(Address at, Bytes size) { return Add(Action::kSegmentMap, at, size); }
  Story& Alloc(Address at, Bytes size) { return Add(Action::kAlloc, at, size); }
  Story& Release(Address at, Bytes size) { return Add(Action::kFreeRequested, at, size); }
  Story& Complete(Address at, Bytes size) { return Add(Action::kFreeCompleted, at, size); }
  Story& Free(Address at, Bytes size) { return Release(at, size).Complete(at, size); }
  Story& RunOut(Bytes size, Bytes device_free) {
    return Add(Action::kOutOfMemory, static_cast<Address>(device_free), size);
  }
  /// The last event came from torch.cuda.empty_cache, or from elsewhere.
  Story& ByEmptyCache() { return Stack(empty_cache_); }
  Story& ByTraining() { return Stack(train_); }
  Story& Conf(const char* conf) {
    t_.settings.conf = conf;
    return *this;
  }
  /// What is held at the end, with the blocks in it from the first to the last.
  Story& End(Address at, Bytes size, std::vector<std::pair<Bytes, BlockState>> blocks) {
    t_.segments.push_back({.address = at,
                           .size = size,
                           .small = size == 2 * kMiB,
                           .first_block = t_.blocks.size(),
                           .block_count = blocks.size()});
    for (const auto& [bytes, state] : blocks) {
      t_.blocks.push_back({.address = at, .size = bytes, .requested = bytes, .state = state});
      at += static_cast<Address>(bytes);
    }
    return *this;
  }
  Timeline& timeline() { return t_; }
  Verification Verify(const VerifyOptions& options = {}) const {
    return plimsoll::Verify(t_, Follow(t_), options);
  }

 private:
  Story& Add(Action action, Address at, Bytes size) {
    t_.events.push_back({.address = at, .size = size, .action = action});
    return *this;
  }
  Story& Stack(StackId stack) {
    t_.events.back().stack = stack;
    return *this;
  }
  Timeline t_;
  StackId empty_cache_;
  StackId train_;
};

std::vector<Request::Kind> Kinds(const Verification& v) {
  std::vector<Request::Kind> kinds;
  for (const Request& r : v.workload.requests) kinds.push_back(r.kind);
  return kinds;
}

/// Two segments, small and large, with a hole that is used again.
Story Tiny() {
  Story story;
  story.Segment(kA, 2 * kMiB)
      .Alloc(kA, 512)
      .Alloc(kA + 512, 1000)
      .Free(kA, 512)
      .Alloc(kA, 400)
      .Segment(kB, 20 * kMiB)
      .Alloc(kB, 5 * kMiB)
      .Alloc(kB + 5 * kMiB, 3 * kMiB);
  story.End(kA, 2 * kMiB,
            {{512, BlockState::kActive},
             {1024, BlockState::kActive},
             {2 * kMiB - 1536, BlockState::kInactive}});
  story.End(kB, 20 * kMiB,
            {{5 * kMiB, BlockState::kActive},
             {3 * kMiB, BlockState::kActive},
             {12 * kMiB, BlockState::kInactive}});
  return story;
}

TEST(Verify, ATinyRecordIsExact) {
  const Verification v = Tiny().Verify();
  EXPECT_TRUE(v.Exact());
  EXPECT_FALSE(v.first.has_value());
  EXPECT_EQ(v.allocations, 5);
  EXPECT_EQ(v.segment_events, 2);
  EXPECT_EQ(v.final_block_differences, 0);
  EXPECT_EQ(v.counters.peak_reserved, 22 * kMiB);
  EXPECT_EQ(v.counters.allocated, 8 * kMiB + 1536);
  EXPECT_TRUE(v.inferred.empty());
  EXPECT_EQ(v.torch, (TorchVersion{2, 11}));
}

TEST(Verify, AnEmptyRecordIsExact) {
  const Timeline nothing;
  const Verification v = Verify(nothing, Follow(nothing), {});
  EXPECT_TRUE(v.Exact());
  EXPECT_TRUE(v.workload.requests.empty());
}

TEST(Verify, AWrongAddressIsOneMismatchAtItsEvent) {
  for (const std::size_t event : {std::size_t{5}, std::size_t{8}}) {
    Story story = Tiny();
    ASSERT_EQ(story.timeline().events[event].action, Action::kAlloc);
    story.timeline().events[event].address += 4096;
    const Verification v = story.Verify();
    EXPECT_EQ(v.address_mismatches, 1);
    EXPECT_EQ(v.segment_mismatches, 0);
    EXPECT_EQ(v.refusal_mismatches, 0);
    ASSERT_TRUE(v.first.has_value());
    EXPECT_EQ(v.first->event, event);
    EXPECT_FALSE(v.Exact());
  }
  Story story = Tiny();
  story.timeline().events[8].address += 4096;
  EXPECT_EQ(story.Verify().first->what,
            "the model puts 3.00 MiB at 0x2000500000, the record has it at 0x2000501000");
}

TEST(Verify, ASegmentOfAnotherSizeIsAMismatchOfTheDriversCalls) {
  Story story;
  story.Segment(kA, 22 * kMiB).Alloc(kA, 5 * kMiB);
  const Verification v = story.Verify();
  EXPECT_EQ(v.address_mismatches, 0);
  EXPECT_EQ(v.segment_mismatches, 2) << "one call that was not made, one that was not recorded";
  EXPECT_EQ(v.first->event, 0u);
}

TEST(Verify, ASegmentThatTheCacheMakesNeedlessIsFound) {
  Story story;
  story.Segment(kA, 20 * kMiB).Alloc(kA, 5 * kMiB).Segment(kB, 20 * kMiB).Alloc(kB, 5 * kMiB);
  const Verification v = story.Verify();
  EXPECT_EQ(v.segment_mismatches, 1);
  EXPECT_EQ(v.address_mismatches, 1);
  EXPECT_EQ(v.first->event, 2u) << "the segment comes first";
}

TEST(Verify, ASegmentThatIsMissingFromTheRecordIsFound) {
  Story story;
  story.Segment(kA, 20 * kMiB).Alloc(kA, 5 * kMiB).Alloc(kA + 5 * kMiB, 16 * kMiB);
  const Verification v = story.Verify();
  EXPECT_EQ(v.segment_mismatches, 1);
  EXPECT_EQ(v.address_mismatches, 1);
  EXPECT_EQ(v.first->event, 2u);
}

TEST(Verify, AnotherReleaseDecidesAnotherWay) {
  // Two free segments of one size; 2.11 takes the lower, 2.13 the older one.
  Story story;
  story.Segment(kB, 24 * kMiB).Alloc(kB, 24 * kMiB).Segment(kA, 24 * kMiB).Alloc(kA, 24 * kMiB);
  story.Free(kB, 24 * kMiB).Free(kA, 24 * kMiB).Alloc(kA, 24 * kMiB);
  EXPECT_TRUE(story.Verify().Exact());
  EXPECT_TRUE(story.Verify({.torch = TorchVersion{2, 4}}).Exact());
  EXPECT_EQ(story.Verify({.torch = TorchVersion{2, 13}}).address_mismatches, 1);
  story.timeline().torch = "2.13";
  EXPECT_FALSE(story.Verify().Exact()) << "the record's own release counts unless one is given";
}

TEST(Verify, OtherSettingsDecideAnotherWay) {
  Story story;
  story.Segment(kA, 40 * kMiB).Alloc(kA, 40 * kMiB).Free(kA, 40 * kMiB).Alloc(kA, 24 * kMiB);
  EXPECT_TRUE(story.Verify().Exact());
  EXPECT_FALSE(story.Conf("max_split_size_mb:32").Verify().Exact());
}

// ---- refusals

TEST(Verify, ARefusalNeedsItsLimit) {
  Story story;
  story.Segment(kA, 20 * kMiB).Alloc(kA, 20 * kMiB).RunOut(30 * kMiB, 100 * kGiB);
  EXPECT_TRUE(story.Verify({.limit = 40 * kMiB}).Exact());
  const Verification v = story.Verify({.limit = 80 * kMiB});
  EXPECT_EQ(v.refusal_mismatches, 1);
  EXPECT_EQ(v.first->event, 2u);
  EXPECT_EQ(v.segment_mismatches, 1) << "the segment that it then takes";
  EXPECT_EQ(v.counters.allocated, 20 * kMiB) << "and lets go of it";
}

TEST(Verify, ALimitThatIsTooSmallRefusesWhatTheRecordServes) {
  const Verification v = Tiny().Verify({.limit = 10 * kMiB});
  EXPECT_EQ(v.refusal_mismatches, 2);
  EXPECT_EQ(v.address_mismatches, 2);
  EXPECT_EQ(v.first->what, "the model makes 0 calls to the driver, the record has 1; 1 differ");
}

TEST(Verify, TheFatalRefusalIsTheOneThatEndsTheRecord) {
  Story story;
  story.Segment(kA, 20 * kMiB).Alloc(kA, 20 * kMiB).RunOut(30 * kMiB, 100 * kGiB);
  const Verification ends = story.Verify({.limit = 40 * kMiB});
  ASSERT_TRUE(ends.workload.fatal.has_value());
  EXPECT_EQ(ends.workload.requests[*ends.workload.fatal].event, 2u);
  EXPECT_EQ(ends.workload.requests[*ends.workload.fatal].kind, Request::Kind::kRefused);
  story.Segment(kB, 20 * kMiB).Alloc(kB, 20 * kMiB);
  EXPECT_FALSE(story.Verify({.limit = 40 * kMiB}).workload.fatal.has_value()) << "it went on";
}

// ---- emptying the cache

Story Emptied() {
  Story story;
  story.Segment(kA, 24 * kMiB).Alloc(kA, 24 * kMiB).Free(kA, 24 * kMiB);
  story.SegmentFree(kA, 24 * kMiB);
  return story;
}

TEST(Verify, ARunOfReleasesWithoutARequestEmptiedTheCache) {
  Story story = Emptied();
  const Verification v = story.Verify();
  EXPECT_TRUE(v.Exact());
  EXPECT_EQ(Kinds(v), (std::vector{Request::Kind::kAllocate, Request::Kind::kFree,
                                   Request::Kind::kEmptyCache}));
  EXPECT_EQ(v.counters.reserved, 0);
}

TEST(Verify, FramesTellAnEmptyCacheFromARetry) {
  Story emptied = Emptied();
  emptied.ByEmptyCache().Segment(kB, 30 * kMiB).Alloc(kB, 30 * kMiB);
  EXPECT_EQ(Kinds(emptied.Verify())[2], Request::Kind::kEmptyCache);
  EXPECT_TRUE(emptied.Verify().Exact());

  Story retried = Emptied();
  retried.ByTraining().Segment(kB, 30 * kMiB).Alloc(kB, 30 * kMiB);
  const Verification v = retried.Verify();
  EXPECT_TRUE(v.Exact()) << "a limit of 24 to 54 MiB is inferred";
  EXPECT_EQ(Kinds(v)[2], Request::Kind::kAllocate);
  EXPECT_EQ(v.counters.retries, 1);
  EXPECT_EQ(v.inferred.size(), 1u);
}

TEST(Verify, WithoutFramesTheRequestTells) {
  Story needless = Emptied();
  needless.Segment(kB, 24 * kMiB).Alloc(kB, 24 * kMiB);
  const Verification v = needless.Verify();
  EXPECT_TRUE(v.Exact());
  EXPECT_EQ(Kinds(v)[2], Request::Kind::kEmptyCache) << "the cache would have served it";
  EXPECT_EQ(v.counters.retries, 0);

  Story forced = Emptied();
  forced.Segment(kB, 30 * kMiB).Alloc(kB, 30 * kMiB);
  EXPECT_EQ(forced.Verify({.limit = 40 * kMiB}).counters.retries, 1) << "there was no room";
  EXPECT_EQ(forced.Verify({.limit = 60 * kMiB}).counters.retries, 0) << "there was";
  EXPECT_TRUE(forced.Verify({.limit = 40 * kMiB}).Exact());
  EXPECT_TRUE(forced.Verify({.limit = 60 * kMiB}).Exact());
}

// ---- frees that wait

TEST(Verify, AFreeThatWaitsIsRequestedAndCompleted) {
  Story story;
  story.Segment(kA, 20 * kMiB).Alloc(kA, 6 * kMiB).Release(kA, 6 * kMiB);
  story.Alloc(kA + 6 * kMiB, 6 * kMiB).Complete(kA, 6 * kMiB).Alloc(kA, 6 * kMiB);
  const Verification v = story.Verify();
  EXPECT_TRUE(v.Exact());
  using Kind = Request::Kind;
  EXPECT_EQ(Kinds(v), (std::vector{Kind::kAllocate, Kind::kRequestFree, Kind::kAllocate,
                                   Kind::kCompleteFree, Kind::kAllocate}));
}

TEST(Verify, TheOldestRecordsHaveNoRequest) {
  Story story;
  story.Segment(kA, 20 * kMiB).Alloc(kA, 6 * kMiB).Complete(kA, 6 * kMiB).Alloc(kA, 6 * kMiB);
  const Verification v = story.Verify();
  EXPECT_TRUE(v.Exact());
  EXPECT_EQ(Kinds(v)[1], Request::Kind::kFree);
}

/// Two frees complete before one retry. Had both completed before the search, the cache would have
/// served; so the second was only waited for.
TEST(Verify, ItIsFoundWhichFreesCompletedBeforeTheSearch) {
  Story story;
  story.Segment(kA, 24 * kMiB).Alloc(kA, 24 * kMiB).Segment(kB, 30 * kMiB).Alloc(kB, 30 * kMiB);
  story.Release(kA, 24 * kMiB).Release(kB, 30 * kMiB);
  story.Complete(kA, 24 * kMiB).Complete(kB, 30 * kMiB);
  story.SegmentFree(kA, 24 * kMiB).ByTraining().SegmentFree(kB, 30 * kMiB).ByTraining();
  story.Segment(kC, 28 * kMiB).Alloc(kC, 28 * kMiB);
  const Verification v = story.Verify({.limit = 60 * kMiB});
  EXPECT_TRUE(v.Exact()) << (v.first ? v.first->what : "");
  EXPECT_EQ(v.counters.retries, 1);
}

// ---- a start in the middle

TEST(VerifyMidRun, WhatWasThereBeforeIsRebuilt) {
  for (std::size_t from = 1; from <= 9; ++from) {
    Story story = Tiny();
    // A segment whose first allocation is its cause: the cut between them makes it a cached one.
    CutBefore(story.timeline(), from);
    const Verification v = story.Verify();
    EXPECT_TRUE(v.Exact()) << "from " << from << ": " << (v.first ? v.first->what : "");
    EXPECT_EQ(v.final_block_differences, 0) << from;
    EXPECT_EQ(v.counters.reserved, 22 * kMiB) << from;
  }
}

/// [6: 5.5 asked for][6 free][8]: the block kept a tail, but the record from here on does not say
/// so. Only that 6.25 MiB do not go behind it shows that the free part is smaller than it looks.
TEST(VerifyMidRun, ABlockThatKeptATailIsFoundByTheFirstWrongChoice) {
  Recorder recorder({});
  const auto first = recorder.Allocate(6 * kMiB);
  const auto second = recorder.Allocate(6 * kMiB);
  recorder.Allocate(8 * kMiB);
  recorder.Free(first);
  const auto keeps_a_tail = recorder.Allocate(5632 * kKiB);
  recorder.Free(second);
  const std::size_t cut = recorder.events();
  recorder.Allocate(6400 * kKiB);
  recorder.Allocate(6200 * kKiB);
  recorder.Free(keeps_a_tail);
  recorder.Allocate(11 * kMiB);
  Timeline t = recorder.Finish();
  CutBefore(t, cut);
  const Verification v = Verify(t, Follow(t), {});
  EXPECT_TRUE(v.Exact()) << (v.first ? v.first->what : "");
  EXPECT_EQ(v.final_block_differences, 0);
}

// ---- every mode: what the model recorded of itself

struct Mode {
  const char* name;
  ModelSetup setup;
  Load load;
  /// A start in the middle needs what no record holds: the ages of free blocks for garbage
  /// collection, the numbers of blocks and segments from 2.12 on.
  bool from_start_only = false;
};

std::vector<Mode> Modes() {
  const std::vector<std::uint64_t> streams = {0, 0x55, 0x33};
  const DeviceLimits limit = {.limit = 420 * kMiB};
  const DeviceLimits capacity = {.capacity = 420 * kMiB};
  constexpr const char* kExpandable = "expandable_segments:True";
  return {
      {"default", {}, {}},
      {"streams", {.streams = streams}, {.defer = 4, .empty_every = 150}},
      {"limit", {.limits = limit}, {.live = 380 * kMiB}},
      {"capacity", {.limits = capacity, .streams = {0, 7}}, {.live = 380 * kMiB}},
      {"split", {.conf = "max_split_size_mb:24", .limits = limit}, {.live = 380 * kMiB}},
      {"pow2", {.conf = "roundup_power2_divisions:4"}, {.empty_every = 200}},
      {"large_segment", {.conf = "large_segment_size_mb:40"}, {}},
      {"collect",
       {.conf = "garbage_collection_threshold:0.6", .limits = limit},
       {.live = 300 * kMiB},
       true},
      {"expandable", {.conf = kExpandable}, {.empty_every = 90}},
      {"expandable_streams",
       {.conf = kExpandable, .streams = streams},
       {.defer = 4, .empty_every = 100}},
      {"expandable_limit", {.conf = kExpandable, .limits = limit}, {.live = 380 * kMiB}},
      {"expandable_capacity", {.conf = kExpandable, .limits = capacity}, {.live = 380 * kMiB}},
      {"v12", {.torch = {2, 12}, .limits = limit}, {.live = 380 * kMiB}, true},
      {"v13", {.torch = {2, 13}, .streams = streams}, {.defer = 5, .empty_every = 200}, true},
      {"v13_pools", {.torch = {2, 13}, .pools = 3}, {.empty_every = 120}, true},
      {"v15_expandable",
       {.conf = kExpandable, .torch = {2, 15}, .limits = limit, .pools = 2},
       {.live = 350 * kMiB},
       true},
  };
}

class EveryMode : public testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(, EveryMode, testing::Range(std::size_t{0}, Modes().size()),
                         [](const auto& mode) { return std::string(Modes()[mode.param].name); });

TEST_P(EveryMode, ARecordOfTheModelIsExactAndReplaysTheSame) {
  const Mode mode = Modes()[GetParam()];
  for (unsigned seed = 1; seed <= 5; ++seed) {
    Load load = mode.load;
    load.seed = seed;
    AllocatorCounters recorded;
    const Timeline t = RecordLoad(mode.setup, load, &recorded);
    ASSERT_FALSE(t.Validate().has_value()) << *t.Validate();
    const Ledger ledger = Follow(t);
    EXPECT_EQ(ledger.contradictions, 0) << seed;
    EXPECT_EQ(ledger.peak_allocated, recorded.peak_allocated) << seed;
    const Verification v = Verify(
        t, ledger, {.limit = mode.setup.limits.limit, .capacity = mode.setup.limits.capacity});
    EXPECT_TRUE(v.Exact()) << seed << ": " << (v.first ? v.first->what : "");
    EXPECT_EQ(v.final_block_differences, 0) << seed;
    EXPECT_EQ(v.counters.peak_reserved, recorded.peak_reserved) << seed;
    EXPECT_EQ(v.counters.peak_allocated, recorded.peak_allocated) << seed;
    EXPECT_EQ(v.counters.retries, recorded.retries) << seed;
    EXPECT_EQ(v.counters.refused, recorded.refused) << seed;
    EXPECT_EQ(v.counters.given_back, recorded.given_back) << seed;

    // The requests alone, with addresses by assumption, come to the same.
    Workload workload = v.workload;
    workload.fatal.reset();
    ReplayLog log;
    const ReplayResult again = Replay(t, workload, {.rules = v.rules, .limits = v.limits}, &log);
    EXPECT_EQ(CheckReplay(log, again.counters), std::nullopt) << seed;
    EXPECT_TRUE(again.fits);
    EXPECT_EQ(again.refusals_served, 0);
    EXPECT_EQ(again.counters.peak_reserved, recorded.peak_reserved) << seed;
    EXPECT_EQ(again.counters.peak_allocated, recorded.peak_allocated) << seed;
    EXPECT_EQ(again.counters.reserved, recorded.reserved) << seed;
    EXPECT_EQ(again.counters.retries, recorded.retries) << seed;
    EXPECT_EQ(again.counters.driver_allocations, recorded.driver_allocations) << seed;
  }
}

std::vector<std::size_t> ModesFromTheMiddle() {
  std::vector<std::size_t> modes;
  for (std::size_t i = 0; i < Modes().size(); ++i) {
    if (!Modes()[i].from_start_only) modes.push_back(i);
  }
  return modes;
}

class ModeFromTheMiddle : public testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(, ModeFromTheMiddle, testing::ValuesIn(ModesFromTheMiddle()),
                         [](const auto& mode) { return std::string(Modes()[mode.param].name); });

TEST_P(ModeFromTheMiddle, IsExactToo) {
  const Mode mode = Modes()[GetParam()];
  for (unsigned seed = 11; seed <= 14; ++seed) {
    Load load = mode.load;
    load.seed = seed;
    Timeline t = RecordLoad(mode.setup, load, nullptr);
    std::mt19937 random(seed);
    const std::size_t at = random() % (t.events.size() / 2) + t.events.size() / 8;
    CutBefore(t, at);
    const Verification v = Verify(
        t, Follow(t), {.limit = mode.setup.limits.limit, .capacity = mode.setup.limits.capacity});
    EXPECT_TRUE(v.Exact()) << "seed " << seed << ", from " << at << ": "
                           << (v.first ? v.first->what : "");
    EXPECT_EQ(v.final_block_differences, 0) << "seed " << seed << ", from " << at;
  }
}

// ---- records that contradict themselves

/// Every event is thrown at random; nothing may crash, and the checker finds nothing to blame.
TEST(VerifyNonsense, NeverCrashes) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    Timeline t;
    t.streams = {0, 9};
    t.pools = {{}, {0, 1}};
    t.torch = seed % 3 == 0 ? "2.15" : seed % 3 == 1 ? "2.12" : "2.11";
    t.events_have_pools = seed % 3 != 2;
    if (seed % 4 == 0) t.settings.expandable_segments = true;
    if (seed % 5 == 0) t.settings.max_split_size = static_cast<Bytes>(random() % (64 * kMiB));
    if (seed % 7 == 0) t.settings.large_segment_size = static_cast<Bytes>(random() % 100);
    if (seed % 11 == 0) t.settings.garbage_collection_threshold = 1e300;
    if (seed % 13 == 0) t.settings.roundup_power2_divisions.fill(3);
    const auto address = [&] { return Address{random() % 64} * 512 * kKiB + (random() % 4) * 512; };
    const auto size = [&]() -> Bytes {
      // The most that readers let pass.
      if (random() % 50 == 0) return (Bytes{1} << 50) - static_cast<Bytes>(random() % 3);
      if (random() % 50 == 0) return 0;
      return static_cast<Bytes>(random() % 8 + 1) << (random() % 24);
    };
    for (int i = 0; i < 200; ++i) {
      t.events.push_back({.address = address(),
                          .size = size(),
                          .stream = static_cast<std::uint16_t>(random() % 2),
                          .pool = static_cast<std::uint8_t>(random() % 2),
                          .action = static_cast<Action>(random() % 11)});
    }
    for (int i = 0; i < 4; ++i) {
      t.segments.push_back({.address = address(),
                            .size = size() % (40 * kMiB),
                            .pool = static_cast<std::uint8_t>(random() % 2),
                            .small = random() % 2 == 0,
                            .expandable = random() % 2 == 0,
                            .first_block = t.blocks.size(),
                            .block_count = 3});
      for (int k = 0; k < 3; ++k) {
        t.blocks.push_back({.address = address(),
                            .size = size() % (40 * kMiB),
                            .requested = size(),
                            .state = static_cast<BlockState>(random() % 3)});
      }
    }
    const Ledger ledger = Follow(t);
    VerifyOptions options;
    if (seed % 2 == 0) options.limit = 30 * kMiB;
    const Verification v = Verify(t, ledger, options);
    const Request nobody;
    for (const bool keep : {true, false}) {
      for (const bool expandable : {true, false}) {
        ReplayOptions replay{.rules = v.rules, .limits = v.limits, .keep_earlier_segments = keep};
        replay.rules.settings.expandable_segments = expandable;
        AssumedDriver driver(t);
        Replayer replayer(v.workload, replay, driver);
        replayer.Run();
        const Fragmentation f = Fragments(replayer, ledger, nobody);
        Bytes sum = f.requested;
        for (const Bytes waste : f.waste) sum += waste;
        EXPECT_EQ(sum, f.reserved) << seed;
        SmallestCapacity(t, v.workload, replay);
      }
    }
  }
}

}  // namespace
}  // namespace plimsoll::verify_test

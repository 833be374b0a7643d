#include "allocator/record/infer.h"

#include <gtest/gtest.h>

namespace plimsoll::infer_test {
namespace {

constexpr Address kA = 0x7e1000000000;
constexpr Address kB = 0x7e2000000000;

/// A record in the making, with a stack for each event.
class Story {
 public:
  Story() {
    t_.streams = {0};
    train_ = Stack({{"forward", "/me/train.py"}});
    empty_cache_ = Stack({{"empty_cache", "/venv/torch/cuda/memory.py"}, {"main", "/me/train.py"}});
  }
  Story& Segment(Address at, Bytes size) { return Add(Action::kSegmentAlloc, at, size, train_); }
  Story& Retry(Address at, Bytes size) { return Add(Action::kSegmentFree, at, size, train_); }
  Story& Empty(Address at, Bytes size) { return Add(Action::kSegmentFree, at, size, empty_cache_); }
  Story& Map(Address at, Bytes size) { return Add(Action::kSegmentMap, at, size, train_); }
  Story& Alloc(Address at, Bytes size) { return Add(Action::kAlloc, at, size, train_); }
  Story& Free(Address at, Bytes size) {
    return Add(Action::kFreeRequested, at, size, train_)
        .Add(Action::kFreeCompleted, at, size, train_);
  }
  Story& RunOut(Bytes size, Bytes device_free) {
    return Add(Action::kOutOfMemory, static_cast<Address>(device_free), size, train_);
  }
  Story& Conf(const char* conf) {
    t_.settings.conf = conf;
    return *this;
  }
  StackId Stack(std::vector<std::pair<const char*, const char*>> frames) {
    std::vector<FrameId> ids;
    for (const auto& [function, file] : frames) {
      StackTable& s = t_.stacks;
      ids.push_back(s.AddFrame({s.strings.Intern(function), s.strings.Intern(file), 1}));
    }
    return t_.stacks.AddStack(ids);
  }
  const Timeline& timeline() const { return t_; }
  Inferred Infer(const DeviceLimits& given = {}) const {
    return InferLimits(t_, Follow(t_), AllocatorRules::From(t_.settings), given);
  }

 private:
  Story& Add(Action action, Address at, Bytes size, StackId stack) {
    t_.events.push_back({.address = at, .size = size, .stack = stack, .action = action});
    return *this;
  }
  Timeline t_;
  StackId train_;
  StackId empty_cache_;
};

TEST(InferLimits, ARecordWithoutRefusalsShowsNone) {
  Story story;
  story.Segment(kA, 24 * kMiB).Alloc(kA, 24 * kMiB);
  const Inferred inferred = story.Infer();
  EXPECT_EQ(inferred.limits.limit, std::nullopt);
  EXPECT_EQ(inferred.limits.capacity, std::nullopt);
  EXPECT_TRUE(inferred.notes.empty());
}

TEST(InferLimits, ADriverThatRefusesShowsWhatItHas) {
  Story story;
  story.Segment(kA, 24 * kMiB).Alloc(kA, 24 * kMiB).RunOut(30 * kMiB, 8 * kMiB);
  const Inferred inferred = story.Infer();
  EXPECT_EQ(inferred.limits.capacity, 32 * kMiB);
  EXPECT_EQ(inferred.limits.limit, std::nullopt);
  ASSERT_EQ(inferred.notes.size(), 1u);
  EXPECT_EQ(inferred.notes[0],
            "the driver could give 32.00 MiB: held and free together when it refused event 2");
}

TEST(InferLimits, OfSeveralRefusalsTheMostCounts) {
  // Another process took some in between.
  Story story;
  story.Segment(kA, 24 * kMiB).Alloc(kA, 24 * kMiB).RunOut(30 * kMiB, 8 * kMiB);
  story.RunOut(30 * kMiB, 4 * kMiB).RunOut(30 * kMiB, 6 * kMiB);
  EXPECT_EQ(story.Infer().limits.capacity, 32 * kMiB);
}

TEST(InferLimits, ARefusalWithRoomOnTheDeviceShowsALimit) {
  Story story;
  story.Segment(kA, 24 * kMiB).Alloc(kA, 24 * kMiB).RunOut(30 * kMiB, 100 * kGiB);
  const Inferred inferred = story.Infer();
  EXPECT_EQ(inferred.limits.limit, 54 * kMiB - 1) << "24 and 30 were too much";
  EXPECT_EQ(inferred.limits.capacity, std::nullopt);
  ASSERT_EQ(inferred.notes.size(), 1u);
  EXPECT_NE(inferred.notes[0].find("a limit of 24.00 MiB to 54.00 MiB"), std::string::npos)
      << inferred.notes[0];
}

TEST(InferLimits, TheSegmentCountsNotTheRequest) {
  Story story;
  story.Segment(kA, 24 * kMiB).Alloc(kA, 24 * kMiB).RunOut(2 * kMiB, 100 * kGiB);
  EXPECT_EQ(story.Infer().limits.limit, 44 * kMiB - 1);
}

TEST(InferLimits, ARequestThatWaitedForAReleaseShowsOneToo) {
  Story story;
  story.Segment(kA, 24 * kMiB).Alloc(kA, 24 * kMiB).Free(kA, 24 * kMiB);
  story.Retry(kA, 24 * kMiB).Segment(kB, 30 * kMiB).Alloc(kB, 30 * kMiB);
  EXPECT_EQ(story.Infer().limits.limit, 54 * kMiB - 1);
}

TEST(InferLimits, AnEmptiedCacheShowsNothing) {
  Story story;
  story.Segment(kA, 24 * kMiB).Alloc(kA, 24 * kMiB).Free(kA, 24 * kMiB);
  story.Empty(kA, 24 * kMiB).Segment(kB, 30 * kMiB).Alloc(kB, 30 * kMiB);
  EXPECT_EQ(story.Infer().limits.limit, std::nullopt);
}

TEST(InferLimits, CollectedGarbageShowsNothing) {
  Story story;
  story.Conf("garbage_collection_threshold:0.5");
  story.Segment(kA, 24 * kMiB).Alloc(kA, 24 * kMiB).Free(kA, 24 * kMiB);
  story.Retry(kA, 24 * kMiB).Segment(kB, 30 * kMiB).Alloc(kB, 30 * kMiB);
  EXPECT_EQ(story.Infer().limits.limit, std::nullopt);
}

TEST(InferLimits, ALimitBelowWhatWasHeldIsNone) {
  // Refused at 24 MiB, and later 60 were held: the fraction was raised in between.
  Story story;
  story.Segment(kA, 24 * kMiB).Alloc(kA, 24 * kMiB).RunOut(30 * kMiB, 100 * kGiB);
  story.Segment(kB, 60 * kMiB).Alloc(kB, 60 * kMiB);
  EXPECT_EQ(story.Infer().limits.limit, std::nullopt);
}

TEST(InferLimits, WhatIsGivenIsKept) {
  Story story;
  story.Segment(kA, 24 * kMiB).Alloc(kA, 24 * kMiB).RunOut(30 * kMiB, 8 * kMiB);
  EXPECT_EQ(story.Infer({.capacity = 99 * kMiB}).limits.capacity, 99 * kMiB);
  Story limited;
  limited.Segment(kA, 24 * kMiB).Alloc(kA, 24 * kMiB).RunOut(30 * kMiB, 100 * kGiB);
  const Inferred inferred = limited.Infer({.limit = 50 * kMiB});
  EXPECT_EQ(inferred.limits.limit, 50 * kMiB);
  EXPECT_TRUE(inferred.notes.empty());
}

TEST(InferLimits, TheDistanceOfReservationsTellsTheDevicesSize) {
  // As on an H200 with 150,109,880,320 bytes: 161,060 MiB of addresses, and up to 32 MiB.
  Story story;
  story.Conf("expandable_segments:True");
  const Address large = 0x302000000;
  const Address small = large + 161088 * kMiB;
  story.Map(large, 20 * kMiB).Alloc(large, 5 * kMiB).Map(small, 2 * kMiB).Alloc(small, 512);
  const Bytes total = story.Infer().limits.total;
  EXPECT_NEAR(double(total), 150109880320.0, double(32 * kMiB));
  Story one;
  one.Conf("expandable_segments:True").Map(large, 20 * kMiB).Alloc(large, 5 * kMiB);
  EXPECT_EQ(one.Infer().limits.total, DeviceLimits{}.total) << "one reservation tells nothing";
}

TEST(EmptyCacheStacks, PythonAndCppFramesTell) {
  Story story;
  const StackId python = story.Stack({{"empty_cache", "torch/cuda/memory.py"}});
  const StackId cpp = story.Stack({{"c10::cuda::CUDACachingAllocator::emptyCache", "??"}});
  const StackId other = story.Stack({{"forward", "model.py"}});
  const StackId machine = story.Stack({{"at::empty", "??"}});
  const StackId none = story.Stack({});
  const EmptyCacheStacks stacks(story.timeline());
  EXPECT_EQ(stacks.Of(python), true);
  EXPECT_EQ(stacks.Of(cpp), true);
  EXPECT_EQ(stacks.Of(other), false);
  EXPECT_EQ(stacks.Of(machine), std::nullopt) << "frames that need not be all";
  EXPECT_EQ(stacks.Of(none), std::nullopt);
  EXPECT_EQ(stacks.Of(StackId()), std::nullopt);
}

}  // namespace
}  // namespace plimsoll::infer_test

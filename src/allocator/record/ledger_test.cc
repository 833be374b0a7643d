#include "allocator/record/ledger.h"

#include <gtest/gtest.h>

namespace plimsoll::ledger_test {
namespace {

constexpr Address kBase = 0x10000000;

/// A record in the making: each call is one event.
class Story {
 public:
  Story() { timeline_.streams = {0, 77}; }
  Story& Segment(Address at, Bytes size) { return Add(Action::kSegmentAlloc, at, size); }
  Story& SegmentFree(Address at, Bytes size) { return Add(Action::kSegmentFree, at, size); }
  Story& Map(Address at, Bytes size) { return Add(Action::kSegmentMap, at, size); }
  Story& Unmap(Address at, Bytes size) { return Add(Action::kSegmentUnmap, at, size); }
  Story& Alloc(Address at, Bytes size) { return Add(Action::kAlloc, at, size); }
  Story& Release(Address at, Bytes size) { return Add(Action::kFreeRequested, at, size); }
  Story& Complete(Address at, Bytes size) { return Add(Action::kFreeCompleted, at, size); }
  Story& Free(Address at, Bytes size) { return Release(at, size).Complete(at, size); }
  Ledger Follow() const { return plimsoll::Follow(timeline_); }
  Timeline& timeline() { return timeline_; }

 private:
  Story& Add(Action action, Address at, Bytes size) {
    timeline_.events.push_back({.address = at, .size = size, .action = action});
    return *this;
  }
  Timeline timeline_;
};

TEST(Ledger, ALargeBlockKeepsARemainderOfUpToOneMebibyte) {
  const Ledger ledger = Story().Segment(kBase, 12 * kMiB).Alloc(kBase, 11 * kMiB).Follow();
  EXPECT_EQ(ledger.allocations.at(0).block, 12 * kMiB);
  const Ledger split = Story().Segment(kBase, 14 * kMiB).Alloc(kBase, 12 * kMiB).Follow();
  EXPECT_EQ(split.allocations.at(0).block, 12 * kMiB);
}

TEST(Ledger, SmallBlocksSplitAtFiveHundredAndTwelveBytes) {
  const Ledger ledger =
      Story().Segment(kBase, 2 * kMiB).Alloc(kBase, 1).Alloc(kBase + 512, 513).Follow();
  EXPECT_EQ(ledger.allocations.at(0).block, 512);
  EXPECT_EQ(ledger.allocations.at(1).block, 1024);
  EXPECT_EQ(ledger.peak_allocated, 1536);
  EXPECT_EQ(ledger.peak_reserved, 2 * kMiB);
  EXPECT_EQ(ledger.contradictions, 0);
}

TEST(Ledger, FreedNeighboursMergeIntoOneBlock) {
  const Ledger ledger = Story()
                            .Segment(kBase, 20 * kMiB)
                            .Alloc(kBase, 2 * kMiB)
                            .Alloc(kBase + 2 * kMiB, 2 * kMiB)
                            .Alloc(kBase + 4 * kMiB, 2 * kMiB)
                            .Free(kBase, 2 * kMiB)
                            .Free(kBase + 2 * kMiB, 2 * kMiB)
                            .Alloc(kBase, 4 * kMiB)
                            .Follow();
  EXPECT_EQ(ledger.allocations.back().block, 4 * kMiB);
  EXPECT_EQ(ledger.contradictions, 0);
}

TEST(Ledger, AllocatedFallsAtTheReleaseAndTheBlockIsFreeAtItsCompletion) {
  const Ledger ledger = Story()
                            .Segment(kBase, 20 * kMiB)
                            .Alloc(kBase, 2 * kMiB)
                            .Release(kBase, 2 * kMiB)
                            .Alloc(kBase + 2 * kMiB, 3 * kMiB)
                            .Complete(kBase, 2 * kMiB)
                            .Follow();
  const Allocation& first = ledger.allocations.at(0);
  EXPECT_TRUE(first.HeldAt(1));
  EXPECT_FALSE(first.HeldAt(2));
  EXPECT_TRUE(first.PendingAt(3));
  EXPECT_FALSE(first.PendingAt(4));
  EXPECT_EQ(ledger.peak_allocated, 3 * kMiB);
}

TEST(Ledger, PowerOfTwoDivisionsRoundTheBlock) {
  Story story;
  story.timeline().settings.roundup_power2_divisions.fill(4);
  const Ledger ledger = story.Segment(kBase, 20 * kMiB).Alloc(kBase, 5 * kMiB / 4 + 1).Follow();
  EXPECT_EQ(ledger.allocations.at(0).block, 3 * kMiB / 2);
}

TEST(Ledger, ABlockBeyondTheSplitLimitKeepsItsSegment) {
  Story story;
  story.timeline().settings.max_split_size = 32 * kMiB;
  const Ledger ledger = story.Segment(kBase, 50 * kMiB).Alloc(kBase, 40 * kMiB).Follow();
  EXPECT_EQ(ledger.allocations.at(0).block, 50 * kMiB);
}

TEST(Ledger, ExpandableSegmentsGrowShrinkAndSplitFinely) {
  const Ledger ledger = Story()
                            .Map(kBase, 20 * kMiB)
                            .Alloc(kBase, 12 * kMiB)
                            .Map(kBase + 20 * kMiB, 20 * kMiB)
                            .Alloc(kBase + 12 * kMiB, 20 * kMiB)
                            .Free(kBase + 12 * kMiB, 20 * kMiB)
                            .Unmap(kBase + 20 * kMiB, 20 * kMiB)
                            .Alloc(kBase + 12 * kMiB, 8 * kMiB)
                            .Follow();
  EXPECT_EQ(ledger.contradictions, 0);
  EXPECT_EQ(ledger.allocations.at(0).block, 12 * kMiB) << "8 MiB stay free behind it";
  EXPECT_EQ(ledger.allocations.at(1).block, 20 * kMiB) << "it spans both pages";
  EXPECT_EQ(ledger.allocations.at(2).block, 8 * kMiB);
  EXPECT_EQ(ledger.peak_reserved, 40 * kMiB);
}

TEST(Ledger, AStartMidRunIsRebuiltFromItsEnd) {
  Story story;
  // Before the record: A (3 MiB, freed in it) and B (4 MiB, stays), in one segment of 20 MiB.
  story.Free(kBase, 3 * kMiB).Alloc(kBase, 2 * kMiB);
  Timeline& t = story.timeline();
  t.segments = {{.address = kBase, .size = 20 * kMiB, .first_block = 0, .block_count = 4}};
  t.blocks = {
      {.address = kBase, .size = 2 * kMiB, .requested = 2 * kMiB, .state = BlockState::kActive},
      {.address = kBase + 2 * kMiB, .size = kMiB},
      {.address = kBase + 3 * kMiB,
       .size = 4 * kMiB,
       .requested = 4 * kMiB,
       .state = BlockState::kActive},
      {.address = kBase + 7 * kMiB, .size = 13 * kMiB}};
  const Ledger ledger = story.Follow();
  EXPECT_EQ(ledger.before, 2);
  EXPECT_EQ(ledger.initial_allocated, 7 * kMiB);
  EXPECT_EQ(ledger.initial_reserved, 20 * kMiB);
  EXPECT_EQ(ledger.peak_allocated, 7 * kMiB);
  EXPECT_EQ(ledger.contradictions, 0);
  // 1 MiB is too little to split off.
  EXPECT_EQ(ledger.allocations.back().block, 3 * kMiB);
}

TEST(Ledger, ContradictionsAreCountedAndSurvived) {
  const Ledger ledger = Story()
                            .Segment(kBase, 2 * kMiB)
                            .Alloc(kBase, 1000)
                            .Alloc(kBase, 1000)
                            .Free(kBase + 4096, 512)
                            .Follow();
  EXPECT_EQ(ledger.contradictions, 3);
}

TEST(Ledger, RangesAreThoseOfTheMoment) {
  Story story;
  story.Segment(kBase, 2 * kMiB).Segment(kBase + kGiB, 20 * kMiB).SegmentFree(kBase, 2 * kMiB);
  const Ledger ledger = story.Follow();
  EXPECT_EQ(RangesAt(story.timeline(), ledger, 1).size(), 2u);
  const std::vector<MappedRange> last = RangesAt(story.timeline(), ledger, 2);
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(last[0].size, 20 * kMiB);
}

}  // namespace
}  // namespace plimsoll::ledger_test

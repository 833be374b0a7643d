#include "timeline/vet.h"

#include <algorithm>

#include "timeline/limits.h"

namespace plimsoll {
namespace {

constexpr const char* kNoRange = "ranges of addresses that no device has";

/// Of an out-of-memory event the address is what was free.
bool HasRange(const Event& event) {
  return event.action != Action::kOutOfMemory && event.action != Action::kOther;
}

std::int64_t VetEvents(Timeline& timeline) {
  std::int64_t taken_out = 0;
  const std::size_t events = timeline.events.size();
  for (std::size_t i = 0; i < events + timeline.pinned.events.size(); ++i) {
    Event& event = i < events ? timeline.events[i] : timeline.pinned.events[i - events];
    event.time_us = std::clamp(event.time_us, -kLatestTime, kLatestTime);
    if (!HasRange(event) || IsDeviceRange(event.address, event.size)) continue;
    event.action = Action::kOther;
    event.address = 0;
    event.size = 0;
    ++taken_out;
  }
  return taken_out;
}

bool IsPossible(const Segment& segment) { return IsDeviceRange(segment.address, segment.size); }
bool IsPossible(const Block& block) {
  return IsDeviceRange(block.address, block.size) && IsDeviceRange(block.address, block.requested);
}

std::int64_t VetSegments(Timeline& timeline) {
  const auto possible = [](const auto& range) { return IsPossible(range); };
  if (std::all_of(timeline.segments.begin(), timeline.segments.end(), possible) &&
      std::all_of(timeline.blocks.begin(), timeline.blocks.end(), possible)) {
    return 0;
  }
  const std::size_t before = timeline.segments.size() + timeline.blocks.size();
  std::vector<Segment> segments;
  std::vector<Block> blocks;
  for (Segment segment : timeline.segments) {
    if (!IsPossible(segment)) continue;
    const std::size_t end = segment.first_block + segment.block_count;
    const std::size_t first = blocks.size();
    for (std::size_t b = segment.first_block; b < end; ++b) {
      if (IsPossible(timeline.blocks[b])) blocks.push_back(timeline.blocks[b]);
    }
    segment.first_block = first;
    segment.block_count = blocks.size() - first;
    segments.push_back(segment);
  }
  timeline.segments = std::move(segments);
  timeline.blocks = std::move(blocks);
  return static_cast<std::int64_t>(before - timeline.segments.size() - timeline.blocks.size());
}

}  // namespace

void TakeOutImpossible(Recording& recording) {
  std::int64_t taken_out = 0;
  for (Timeline& timeline : recording.timelines) {
    taken_out += VetEvents(timeline);
    taken_out += VetSegments(timeline);
    for (Annotation& mark : timeline.annotations) {
      mark.time_us = std::clamp(mark.time_us, -kLatestTime, kLatestTime);
    }
  }
  if (taken_out > 0) recording.skipped[kNoRange] += taken_out;
}

}  // namespace plimsoll

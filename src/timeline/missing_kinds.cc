#include "timeline/missing_kinds.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "base/hash.h"

namespace plimsoll {
namespace {

struct KindCounts {
  std::array<std::size_t, static_cast<std::size_t>(Action::kOther) + 1> of{};

  explicit KindCounts(const Timeline& timeline) {
    for (const Event& e : timeline.events) ++of[static_cast<std::size_t>(e.action)];
  }
  std::size_t Of(Action action) const { return of[static_cast<std::size_t>(action)]; }
  std::size_t Segments() const {
    return Of(Action::kSegmentAlloc) + Of(Action::kSegmentFree) + Of(Action::kSegmentMap) +
           Of(Action::kSegmentUnmap);
  }
};

/// Whether an address gets `again` twice without `between` in the middle of it.
bool Repeats(const Timeline& timeline, Action again, Action between) {
  HashMap<Address, bool> open;
  for (const Event& e : timeline.events) {
    if (e.action == between) open[e.address] = false;
    if (e.action != again) continue;
    bool& is_open = open[e.address];
    if (is_open) return true;
    is_open = true;
  }
  return false;
}

/// The blocks that are in use, or wait for a stream, when the record is made.
HashMap<Address, BlockState> FinalBlocks(const Timeline& timeline) {
  HashMap<Address, BlockState> blocks;
  for (const Block& block : timeline.blocks) {
    if (block.state != BlockState::kInactive) blocks.emplace(block.address, block.state);
  }
  return blocks;
}

/// Whether something is given back, as the record shows, of which it does not tell how: made, or
/// released, and no longer there at the end.
bool Vanishes(const Timeline& timeline, Action last_seen) {
  const HashMap<Address, BlockState> blocks = FinalBlocks(timeline);
  for (const Event& e : timeline.events) {
    if (e.action == last_seen && !blocks.contains(e.address)) return true;
  }
  return false;
}

/// Whether what was made in this record is completed without having been released.
bool CompletesOwn(const Timeline& timeline) {
  HashMap<Address, bool> made;
  for (const Event& e : timeline.events) {
    if (e.action == Action::kAlloc) made[e.address] = true;
    if (e.action == Action::kFreeCompleted && made.contains(e.address)) return true;
  }
  return false;
}

bool AllocatesOutside(const Timeline& timeline) {
  std::vector<std::pair<Address, Address>> ranges;
  for (const Segment& s : timeline.segments) {
    ranges.emplace_back(s.address, s.address + static_cast<Address>(s.size));
  }
  std::ranges::sort(ranges);
  for (const Event& e : timeline.events) {
    if (e.action != Action::kAlloc) continue;
    const auto after =
        std::ranges::upper_bound(ranges, e.address, {}, &std::pair<Address, Address>::first);
    if (after == ranges.begin() || std::prev(after)->second <= e.address) return true;
  }
  return false;
}

}  // namespace

MissingKinds FindMissingKinds(const Timeline& timeline) {
  // Other formats than snapshots have kinds of their own.
  if (timeline.segments.empty() || timeline.events.empty()) return {};
  const KindCounts counts(timeline);
  const bool allocs = counts.Of(Action::kAlloc) > 0;
  const bool releases = counts.Of(Action::kFreeRequested) > 0;
  const bool completions = counts.Of(Action::kFreeCompleted) > 0;
  MissingKinds missing;
  if (!allocs) {
    const Action free = completions ? Action::kFreeCompleted : Action::kFreeRequested;
    missing.allocs = (releases || completions) && Repeats(timeline, free, Action::kAlloc);
  }
  if (releases && !completions) {
    missing.completions = Vanishes(timeline, Action::kFreeRequested) ||
                          Repeats(timeline, Action::kFreeRequested, Action::kFreeCompleted);
  } else if (completions && !releases) {
    missing.releases = CompletesOwn(timeline);
  } else if (allocs && !releases && !completions) {
    missing.releases = missing.completions =
        Repeats(timeline, Action::kAlloc, Action::kFreeCompleted) ||
        Vanishes(timeline, Action::kAlloc);
  }
  if (counts.Segments() == 0) missing.segments = AllocatesOutside(timeline);
  return missing;
}

}  // namespace plimsoll

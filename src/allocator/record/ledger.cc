#include "allocator/record/ledger.h"

#include <algorithm>

#include "allocator/record/heap.h"
#include "allocator/record/initial_state.h"
#include "base/check.h"

namespace plimsoll {
namespace {

class Follower {
 public:
  explicit Follower(const Timeline& timeline)
      : timeline_(timeline), rules_(AllocatorRules::From(timeline.settings)), heap_(rules_, 1024) {}

  Ledger Run() {
    PLIMSOLL_CHECK(timeline_.events.size() < static_cast<std::size_t>(kNotYet));
    ledger_.has_segments = HasSegments();
    ledger_.missing = FindMissingKinds(timeline_);
    ledger_.allocations.reserve(timeline_.events.size() / 2);
    ledger_.allocation_of_event.assign(timeline_.events.size(), Ledger::kNoAllocation);
    PlaceEarlier();
    NotePeaks(kBefore);
    for (std::size_t i = 0; i < timeline_.events.size(); ++i) {
      Apply(timeline_.events[i], static_cast<Position>(i));
      NotePeaks(static_cast<Position>(i));
    }
    if (ledger_.missing.any()) ledger_.contradictions = 0;
    ledger_.allocations.shrink_to_fit();
    return std::move(ledger_);
  }

 private:
  bool HasSegments() const {
    if (!timeline_.segments.empty()) return true;
    for (const Event& e : timeline_.events) {
      if (e.action == Action::kSegmentAlloc || e.action == Action::kSegmentMap) return true;
    }
    return false;
  }

  void PlaceEarlier() {
    ledger_.initial_ranges = InitialRanges(timeline_);
    for (const MappedRange& range : ledger_.initial_ranges) {
      heap_.AddRange(range.address, range.size, range.expandable);
      reserved_ += range.size;
    }
    // Without memory from the driver nothing can have been in it.
    if (ledger_.initial_ranges.empty() && ledger_.has_segments) return;
    std::size_t range = 0;
    Address rest = 0;
    for (EarlierBlock& earlier : EarlierBlocks(timeline_, rules_, ledger_.initial_ranges)) {
      Allocation& a = earlier.allocation;
      if (earlier.pending) a.released = kBefore;
      const auto& ranges = ledger_.initial_ranges;
      while (range < ranges.size() &&
             ranges[range].address + static_cast<Address>(ranges[range].size) <= a.address) {
        ++range;
      }
      if (range < ranges.size()) rest = std::max(rest, ranges[range].address);
      std::uint32_t block = heap_.PlaceExactly(rest, a.address, a.block);
      if (block == FlatMap::kMissing) block = heap_.Allocate(a.address, a.block).block;
      rest = a.address + static_cast<Address>(a.block);
      heap_.SetOwner(block, Add(a));
      ++ledger_.before;
      if (!earlier.pending) allocated_ += a.block;
    }
    ledger_.initial_allocated = allocated_;
    ledger_.initial_reserved = reserved_;
  }

  std::uint32_t Add(const Allocation& allocation) {
    ledger_.allocations.push_back(allocation);
    return static_cast<std::uint32_t>(ledger_.allocations.size() - 1);
  }

  void Apply(const Event& e, Position at) {
    switch (e.action) {
      case Action::kAlloc:
        return Allocate(e, at);
      case Action::kFreeRequested:
        return ledger_.missing.completions ? Complete(e, at) : Release(e, at);
      case Action::kFreeCompleted:
        return Complete(e, at);
      case Action::kSegmentAlloc:
      case Action::kSegmentMap:
        heap_.AddRange(e.address, e.size, e.action == Action::kSegmentMap);
        reserved_ += e.size;
        return;
      case Action::kSegmentFree:
      case Action::kSegmentUnmap:
        if (!heap_.RemoveRange(e.address, e.size, e.action == Action::kSegmentUnmap)) {
          ++ledger_.contradictions;
        }
        reserved_ -= e.size;
        return;
      default:
        return;
    }
  }

  void Allocate(const Event& e, Position at) {
    if (ledger_.missing.frees()) FreeUnseen(e.address, at);
    const Bytes rounded = ledger_.has_segments ? rules_.Round(e.size) : e.size;
    const RecordedHeap::Placed placed = heap_.Allocate(e.address, rounded);
    if (!placed.consistent && ledger_.has_segments) ++ledger_.contradictions;
    const std::uint32_t id = Add({.address = e.address,
                                  .requested = e.size,
                                  .block = placed.size,
                                  .made = at,
                                  .stack = e.stack,
                                  .stream = e.stream,
                                  .pool = e.pool});
    heap_.SetOwner(placed.block, id);
    ledger_.allocation_of_event[static_cast<std::size_t>(at)] = id;
    allocated_ += placed.size;
  }

  /// What is given out again was given back before, whenever that was.
  void FreeUnseen(Address address, Position at) {
    const std::uint32_t block = heap_.Find(address);
    if (block == FlatMap::kMissing || !heap_.InUse(block)) return;
    const std::uint32_t id = heap_.Owner(block);
    if (id != Ledger::kNoAllocation && ledger_.allocations[id].freed == kNotYet) {
      Allocation& a = ledger_.allocations[id];
      if (a.released == kNotYet) allocated_ -= a.block;
      a.released = std::min(a.released, at);
      a.freed = at;
    }
    heap_.Free(block);
  }

  /// The allocation in use at an address; none is a contradiction.
  Allocation* InUse(const Event& e, Position at, std::uint32_t& block) {
    block = heap_.Find(e.address);
    if (block == FlatMap::kMissing || !heap_.InUse(block)) {
      ++ledger_.contradictions;
      return nullptr;
    }
    const std::uint32_t id = heap_.Owner(block);
    ledger_.allocation_of_event[static_cast<std::size_t>(at)] = id;
    return id == Ledger::kNoAllocation ? nullptr : &ledger_.allocations[id];
  }

  void Release(const Event& e, Position at) {
    std::uint32_t block = 0;
    Allocation* a = InUse(e, at, block);
    if (a == nullptr || a->released != kNotYet) return;
    a->released = at;
    allocated_ -= a->block;
  }

  void Complete(const Event& e, Position at) {
    std::uint32_t block = 0;
    Allocation* a = InUse(e, at, block);
    if (a != nullptr) {
      if (a->released == kNotYet) {
        a->released = at;
        allocated_ -= a->block;
      }
      a->freed = at;
    }
    if (block != FlatMap::kMissing && heap_.InUse(block)) heap_.Free(block);
  }

  void NotePeaks(Position at) {
    if (allocated_ > ledger_.peak_allocated) {
      ledger_.peak_allocated = allocated_;
      ledger_.peak_allocated_at = at;
    }
    if (reserved_ > ledger_.peak_reserved) {
      ledger_.peak_reserved = reserved_;
      ledger_.peak_reserved_at = at;
    }
  }

  const Timeline& timeline_;
  const AllocatorRules rules_;
  RecordedHeap heap_;
  Ledger ledger_;
  Bytes allocated_ = 0;
  Bytes reserved_ = 0;
};

}  // namespace

Ledger Follow(const Timeline& timeline) { return Follower(timeline).Run(); }

std::optional<Position> FatalOutOfMemory(const Timeline& timeline, const Ledger& ledger) {
  /// More than this share of what was held then is a program that went on.
  constexpr double kNegligible = 0.01;
  Bytes made_later = 0;
  for (std::size_t i = timeline.events.size(); i-- > 0;) {
    const std::uint32_t id = ledger.allocation_of_event[i];
    if (timeline.events[i].action == Action::kAlloc && id != Ledger::kNoAllocation) {
      made_later += ledger.allocations[id].block;
    }
    if (timeline.events[i].action != Action::kOutOfMemory) continue;
    const auto at = static_cast<Position>(i);
    Bytes held = 0;
    for (const Allocation& a : ledger.allocations) held += a.HeldAt(at) ? a.block : 0;
    const double share = double(made_later) / double(std::max<Bytes>(held, 1));
    return share < kNegligible ? std::optional(at) : std::nullopt;
  }
  return std::nullopt;
}

std::vector<MappedRange> RangesAt(const Timeline& timeline, const Ledger& ledger, Position at) {
  RangeSet ranges;
  for (const MappedRange& range : ledger.initial_ranges) ranges.Add(range);
  const auto events = static_cast<Position>(timeline.events.size());
  for (Position i = 0; i <= at && i < events; ++i) {
    const Event& e = timeline.events[static_cast<std::size_t>(i)];
    if (e.action == Action::kSegmentAlloc || e.action == Action::kSegmentMap) {
      ranges.Add({e.address, e.size, e.stream, e.pool, e.action == Action::kSegmentMap});
    } else if (e.action == Action::kSegmentFree || e.action == Action::kSegmentUnmap) {
      ranges.Remove(e.address, e.size);
    }
  }
  return ranges.List();
}

}  // namespace plimsoll

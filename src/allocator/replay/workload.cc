#include "allocator/replay/workload.h"

#include <algorithm>
#include <map>

namespace plimsoll {
namespace {

using SeedSegment = CachingAllocator::SeedSegment;
using SeedPiece = CachingAllocator::SeedPiece;
using State = CachingAllocator::State;

Address EndOf(const MappedRange& range) { return range.address + static_cast<Address>(range.size); }

/// Which of the two pools an earlier range belonged to. The final segments say so; of one that is
/// gone by then, what lay in it tells.
bool IsSmall(const Timeline& timeline, const Ledger& ledger, const MappedRange& range,
             Bytes reach) {
  if (!range.expandable) return range.size == kSmallSegment;
  // Segments of one reservation lie together: the nearest is of the same kind.
  const Segment* nearest = nullptr;
  Address least = static_cast<Address>(reach);
  for (const Segment& s : timeline.segments) {
    if (!s.expandable || s.stream != range.stream || s.pool != range.pool) continue;
    const Address distance =
        s.address > range.address ? s.address - range.address : range.address - s.address;
    if (distance >= least) continue;
    least = distance;
    nearest = &s;
  }
  if (nearest != nullptr) return nearest->small;
  for (std::size_t i = 0; i < static_cast<std::size_t>(ledger.before); ++i) {
    const Allocation& a = ledger.allocations[i];
    if (a.address >= range.address && a.address < EndOf(range)) return a.block <= kSmallRequest;
  }
  return range.size % kLargeSegment != 0;
}

/// Adds pieces of one segment: the blocks of `range` that were in use.
void AddBlocks(const Ledger& ledger, const MappedRange& range, std::size_t& next,
               SeedSegment& segment, std::vector<std::uint32_t>& allocations) {
  const auto before = static_cast<std::size_t>(ledger.before);
  while (next < before && ledger.allocations[next].address < range.address) ++next;
  for (; next < before && ledger.allocations[next].address < EndOf(range); ++next) {
    const Allocation& a = ledger.allocations[next];
    segment.pieces.push_back(
        {.address = a.address,
         .size = a.block,
         .state = a.released == kBefore ? State::kPending : State::kAllocated});
    allocations.push_back(static_cast<std::uint32_t>(next));
  }
}

void AddHole(Address from, Address to, SeedSegment& segment,
             std::vector<std::uint32_t>& allocations) {
  if (to <= from) return;
  segment.pieces.push_back(
      {.address = from, .size = static_cast<Bytes>(to - from), .state = State::kUnmapped});
  allocations.push_back(Ledger::kNoAllocation);
}

/// The lowest address that the record ever shows in the expandable segment of this range. What was
/// mapped for a request of the other size class lies in another segment.
Address BaseOf(const Timeline& timeline, const MappedRange& range, bool small, Bytes reservation) {
  Address base = range.address;
  Address lowest = base;
  for (const Event& e : timeline.events) {
    if (e.action == Action::kSegmentMap && e.stream == range.stream) {
      const bool near =
          e.address < lowest && range.address - e.address < static_cast<Address>(reservation);
      if (near) lowest = e.address;
    } else if (e.action == Action::kAlloc || e.action == Action::kOutOfMemory) {
      if ((e.size <= kSmallRequest) == small) base = std::min(base, lowest);
      lowest = base;
    }
  }
  return base;
}

}  // namespace

void AddSeeds(const Timeline& timeline, const Ledger& ledger,
              const std::function<Bytes(bool small)>& reservation, Workload& workload) {
  std::size_t next = 0;
  SeedSegment* open = nullptr;  // the reservation that further ranges may belong to
  Address mapped_to = 0;
  const auto close = [&] {
    if (open == nullptr) return;
    AddHole(mapped_to, open->address + static_cast<Address>(open->size), *open,
            workload.seed_allocations.back());
    open = nullptr;
  };
  for (const MappedRange& range : ledger.initial_ranges) {
    const bool small = IsSmall(timeline, ledger, range, reservation(false));
    const bool goes_on = open != nullptr && range.expandable && range.stream == open->stream &&
                         range.pool == open->pool && small == open->small &&
                         EndOf(range) <= open->address + static_cast<Address>(open->size);
    if (!goes_on) {
      close();
      workload.seeds.push_back({.address = range.address,
                                .size = range.size,
                                .stream = range.stream,
                                .pool = range.pool,
                                .small = small,
                                .expandable = range.expandable});
      workload.seed_allocations.emplace_back();
      if (range.expandable) {
        open = &workload.seeds.back();
        open->size = reservation(small);
        open->address = mapped_to = BaseOf(timeline, range, small, open->size);
      }
    }
    if (open != nullptr) AddHole(mapped_to, range.address, *open, workload.seed_allocations.back());
    AddBlocks(ledger, range, next, workload.seeds.back(), workload.seed_allocations.back());
    mapped_to = EndOf(range);
  }
  close();
  for (std::size_t i = 0; i < static_cast<std::size_t>(ledger.before); ++i) {
    const Allocation& a = ledger.allocations[i];
    workload.earlier.push_back({.size = a.requested,
                                .allocation = static_cast<std::uint32_t>(i),
                                .stream = a.stream,
                                .pool = a.pool});
  }
}

void Plant(const Workload& workload, CachingAllocator& allocator, Holdings& holdings) {
  for (std::size_t i = 0; i < workload.seeds.size(); ++i) {
    const std::vector<std::uint32_t> ids = allocator.Seed(workload.seeds[i]);
    for (std::size_t piece = 0; piece < ids.size(); ++piece) {
      const std::uint32_t allocation = workload.seed_allocations[i][piece];
      if (allocation == Ledger::kNoAllocation || ids[piece] == CachingAllocator::kNone) continue;
      const bool waits = workload.seeds[i].pieces[piece].state == State::kPending;
      (waits ? holdings.tickets : holdings.blocks)[allocation] = ids[piece];
    }
  }
}

std::vector<std::uint8_t> PoolsOfEvents(const Timeline& timeline) {
  std::vector<std::uint8_t> pools(timeline.events.size(), 0);
  if (timeline.events_have_pools || timeline.pools.size() <= 1) {
    for (std::size_t i = 0; i < pools.size(); ++i) pools[i] = timeline.events[i].pool;
    return pools;
  }
  struct Range {
    Bytes size = 0;
    std::uint8_t pool = 0;
  };
  std::map<Address, Range> ranges;
  for (const Segment& s : timeline.segments) ranges[s.address] = {s.size, s.pool};
  const auto containing = [&](Address address) {
    const auto after = ranges.upper_bound(address);
    if (after == ranges.begin()) return ranges.end();
    const auto it = std::prev(after);
    const bool inside = address - it->first < static_cast<Address>(it->second.size);
    return inside ? it : ranges.end();
  };
  // Backward, so that an address that was used twice is told apart.
  for (std::size_t i = timeline.events.size(); i-- > 0;) {
    const Event& e = timeline.events[i];
    const auto it = containing(e.address);
    switch (e.action) {
      case Action::kSegmentAlloc:
        if (it == ranges.end()) break;
        pools[i] = it->second.pool;
        ranges.erase(it);
        break;
      case Action::kSegmentFree:
        ranges[e.address] = {e.size, 0};
        break;
      case Action::kSegmentMap:
      case Action::kAlloc:
        if (it != ranges.end()) pools[i] = it->second.pool;
        break;
      default:
        break;
    }
  }
  return pools;
}

}  // namespace plimsoll

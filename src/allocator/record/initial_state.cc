#include "allocator/record/initial_state.h"

#include <algorithm>
#include <optional>

#include "base/flat_map.h"

namespace plimsoll {

void RangeSet::Add(const MappedRange& range) {
  if (range.size <= 0) return;
  MappedRange added = range;
  if (added.expandable) {
    auto next = ranges_.find(added.address + static_cast<Address>(added.size));
    if (next != ranges_.end() && next->second.expandable) {
      added.size += next->second.size;
      ranges_.erase(next);
    }
    auto after = ranges_.upper_bound(added.address);
    if (after != ranges_.begin()) {
      auto before = std::prev(after);
      MappedRange& left = before->second;
      if (left.expandable && left.address + static_cast<Address>(left.size) == added.address) {
        left.size += added.size;
        return;
      }
    }
  }
  ranges_.emplace(added.address, added);
}

void RangeSet::Remove(Address address, Bytes size) {
  const MappedRange* const found = Around(address);
  if (found == nullptr || size <= 0) return;
  const MappedRange whole = *found;
  const auto skip = static_cast<Bytes>(address - whole.address);
  const Bytes gone = std::min(size, whole.size - skip);
  ranges_.erase(whole.address);
  MappedRange part = whole;
  if (skip > 0) {
    part.size = skip;
    ranges_.emplace(part.address, part);
  }
  if (skip + gone < whole.size) {
    part.address = address + static_cast<Address>(gone);
    part.size = whole.size - skip - gone;
    ranges_.emplace(part.address, part);
  }
}

std::vector<MappedRange> RangeSet::List() const {
  std::vector<MappedRange> list;
  list.reserve(ranges_.size());
  for (const auto& [address, range] : ranges_) list.push_back(range);
  return list;
}

const MappedRange* RangeSet::BeginningAt(Address address) const {
  const auto found = ranges_.find(address);
  return found == ranges_.end() ? nullptr : &found->second;
}

const MappedRange* RangeSet::Around(Address address) const {
  const auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) return nullptr;
  const MappedRange& range = std::prev(after)->second;
  return address - range.address < static_cast<Address>(range.size) ? &range : nullptr;
}

std::vector<MappedRange> InitialRanges(const Timeline& timeline) {
  RangeSet ranges;
  for (const Segment& s : timeline.segments) {
    ranges.Add({s.address, s.size, s.stream, s.pool, s.expandable});
  }
  for (auto e = timeline.events.rbegin(); e != timeline.events.rend(); ++e) {
    switch (e->action) {
      case Action::kSegmentAlloc:
      case Action::kSegmentMap:
        ranges.Remove(e->address, e->size);
        break;
      case Action::kSegmentFree:
        ranges.Add({e->address, e->size, e->stream, e->pool, false});
        break;
      case Action::kSegmentUnmap:
        ranges.Add({e->address, e->size, e->stream, e->pool, true});
        break;
      default:
        break;
    }
  }
  return ranges.List();
}

namespace {

/// The blocks whose first event is a free, and those that no event ever touched.
std::vector<EarlierBlock> FindEarlier(const Timeline& timeline) {
  std::vector<EarlierBlock> earlier;
  FlatMap touched(timeline.blocks.size() + 1024);
  constexpr std::uint32_t kFromTrace = FlatMap::kMissing - 1;
  for (std::size_t i = 0; i < timeline.events.size(); ++i) {
    const Event& e = timeline.events[i];
    const bool frees = e.action == Action::kFreeRequested || e.action == Action::kFreeCompleted;
    if (!frees && e.action != Action::kAlloc) continue;
    const std::uint32_t known = touched.Find(e.address);
    if (known < earlier.size() && e.action == Action::kFreeCompleted &&
        earlier[known].freed == kNotYet) {
      earlier[known].freed = static_cast<Position>(i);
    }
    if (known != FlatMap::kMissing) continue;
    if (!frees) {
      touched.Set(e.address, kFromTrace);
      continue;
    }
    touched.Set(e.address, static_cast<std::uint32_t>(earlier.size()));
    earlier.push_back({.allocation = {.address = e.address,
                                      .requested = e.size,
                                      .stack = e.stack,
                                      .stream = e.stream,
                                      .pool = e.pool},
                       .pending = e.action == Action::kFreeCompleted});
    if (e.action == Action::kFreeCompleted) earlier.back().freed = static_cast<Position>(i);
  }
  for (const Segment& s : timeline.segments) {
    for (std::size_t i = s.first_block; i < s.first_block + s.block_count; ++i) {
      const Block& b = timeline.blocks[i];
      if (b.state == BlockState::kInactive) continue;
      if (touched.Find(b.address) != FlatMap::kMissing) continue;
      touched.Set(b.address, kFromTrace);
      earlier.push_back({.allocation = {.address = b.address,
                                        .requested = b.requested,
                                        .block = b.size,
                                        .stack = b.stack,
                                        .stream = s.stream,
                                        .pool = s.pool},
                         .pending = b.state == BlockState::kPendingFree,
                         .exact = true});
    }
  }
  std::sort(earlier.begin(), earlier.end(), [](const EarlierBlock& a, const EarlierBlock& b) {
    return a.allocation.address < b.allocation.address;
  });
  return earlier;
}

/// Where later allocations begin, with the event: the first one behind a block shows its end.
std::vector<std::pair<Address, Position>> Beginnings(const Timeline& timeline) {
  std::vector<std::pair<Address, Position>> begins;
  for (std::size_t i = 0; i < timeline.events.size(); ++i) {
    const Event& e = timeline.events[i];
    if (e.action == Action::kAlloc) begins.emplace_back(e.address, static_cast<Position>(i));
  }
  std::sort(begins.begin(), begins.end());
  return begins;
}

/// Where the first allocation within 1 MiB behind `end` began, as long as the block was there.
std::optional<Address> FirstBeginning(const std::vector<std::pair<Address, Position>>& begins,
                                      Address end, Position before) {
  std::optional<Address> shown;
  auto at = std::lower_bound(begins.begin(), begins.end(), std::pair(end, kBefore));
  while (at != begins.end() && at->first - end <= static_cast<Address>(kLeastLargeRemainder)) {
    if (at->second < before) {
      before = at->second;
      shown = at->first;
    }
    // Only the first at each address can be it.
    at = std::upper_bound(at, begins.end(), std::pair(at->first, kNotYet));
  }
  return shown;
}

}  // namespace

std::vector<EarlierBlock> EarlierBlocks(const Timeline& timeline, const AllocatorRules& rules,
                                        const std::vector<MappedRange>& ranges) {
  std::vector<EarlierBlock> earlier = FindEarlier(timeline);
  if (earlier.empty()) return earlier;
  const std::vector<std::pair<Address, Position>> begins = Beginnings(timeline);
  std::size_t range = 0;
  for (std::size_t i = 0; i < earlier.size(); ++i) {
    Allocation& a = earlier[i].allocation;
    const auto end_of = [](const MappedRange& r) {
      return r.address + static_cast<Address>(r.size);
    };
    while (range < ranges.size() && end_of(ranges[range]) <= a.address) ++range;
    if (range == ranges.size() || ranges[range].address > a.address) {
      if (!earlier[i].exact) a.block = rules.Round(a.requested);
      continue;
    }
    a.pool = ranges[range].pool;
    if (earlier[i].exact) continue;
    const Bytes rounded = rules.Round(a.requested);
    Address boundary = end_of(ranges[range]);
    if (i + 1 < earlier.size()) boundary = std::min(boundary, earlier[i + 1].allocation.address);
    // A range at the very end of the address space would wrap.
    const Bytes room = boundary > a.address ? static_cast<Bytes>(boundary - a.address) : rounded;
    a.block = std::min(rounded, room);
    if (rounded <= kSmallRequest || ranges[range].expandable) continue;
    // A remainder of up to 1 MiB was never split off. Before a larger gap the block may still own
    // some of it; the first allocation that begins there later shows where it really ended.
    if (room - rounded <= kLeastLargeRemainder || rounded >= rules.settings.max_split_size) {
      a.block = room;
      continue;
    }
    const Address end = a.address + static_cast<Address>(rounded);
    if (const auto shown = FirstBeginning(begins, end, earlier[i].freed)) {
      a.block = static_cast<Bytes>(*shown - a.address);
    }
  }
  return earlier;
}

}  // namespace plimsoll

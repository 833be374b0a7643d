#include "allocator/replay_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace plimsoll {
namespace {

/// Half-open ranges of addresses that do not overlap.
class Ranges {
 public:
  /// False if it overlaps one that is there.
  bool Add(Address begin, Address end) {
    const auto after = ranges_.lower_bound(begin);
    if (after != ranges_.end() && after->first < end) return false;
    if (after != ranges_.begin() && std::prev(after)->second > begin) return false;
    ranges_.emplace_hint(after, begin, end);
    return true;
  }
  /// Like Add, and joins neighbours.
  bool AddJoining(Address begin, Address end) {
    if (!Add(begin, end)) return false;
    auto it = ranges_.find(begin);
    if (const auto next = std::next(it); next != ranges_.end() && next->first == end) {
      it->second = next->second;
      ranges_.erase(next);
    }
    if (it != ranges_.begin() && std::prev(it)->second == begin) {
      std::prev(it)->second = it->second;
      ranges_.erase(it);
    }
    return true;
  }
  bool Contains(Address begin, Address end) const {
    const auto after = ranges_.upper_bound(begin);
    return after != ranges_.begin() && std::prev(after)->second >= end;
  }
  bool RemoveExactly(Address begin, Address end) {
    const auto it = ranges_.find(begin);
    if (it == ranges_.end() || it->second != end) return false;
    ranges_.erase(it);
    return true;
  }
  /// Takes a part out of the range that holds it.
  bool Cut(Address begin, Address end) {
    if (!Contains(begin, end)) return false;
    const auto it = std::prev(ranges_.upper_bound(begin));
    const Address old_end = it->second;
    if (it->first == begin) {
      ranges_.erase(it);
    } else {
      it->second = begin;
    }
    if (end < old_end) ranges_.emplace(end, old_end);
    return true;
  }
  bool Touches(Address begin, Address end) const {
    const auto after = ranges_.lower_bound(begin);
    if (after != ranges_.end() && after->first < end) return true;
    return after != ranges_.begin() && std::prev(after)->second > begin;
  }

 private:
  std::map<Address, Address> ranges_;
};

}  // namespace

std::optional<std::string> CheckReplay(const ReplayLog& log, const AllocatorCounters& counters) {
  Ranges memory;
  Ranges blocks;
  Bytes held = 0;
  Bytes used = 0;
  Bytes most_held = 0;
  Bytes most_used = 0;
  for (std::size_t i = 0; i < log.entries.size(); ++i) {
    const ReplayLog::Entry& e = log.entries[i];
    const Address end = e.address + static_cast<Address>(e.size);
    std::string_view wrong;
    switch (e.what) {
      case ReplayLog::What::kMemory:
        if (!memory.AddJoining(e.address, end)) wrong = "memory that is held is given again";
        held += e.size;
        break;
      case ReplayLog::What::kMemoryGone:
        if (blocks.Touches(e.address, end)) wrong = "memory goes back while a block lies in it";
        if (!memory.Cut(e.address, end)) wrong = "memory goes back that was not held";
        held -= e.size;
        break;
      case ReplayLog::What::kBlock:
        if (!memory.Contains(e.address, end)) wrong = "a block lies outside the memory held";
        if (!blocks.Add(e.address, end)) wrong = "two blocks overlap";
        used += e.size;
        break;
      case ReplayLog::What::kBlockGone:
        if (!blocks.RemoveExactly(e.address, end)) wrong = "a block is freed that is not there";
        used -= e.size;
        break;
    }
    if (!wrong.empty()) return fmt::format("{} (entry {}, address {:#x})", wrong, i, e.address);
    most_held = std::max(most_held, held);
    most_used = std::max(most_used, used);
  }
  if (held != counters.reserved || most_held != counters.peak_reserved) {
    return fmt::format("memory held adds up to {} ({} at most), the model says {} ({})", held,
                       most_held, counters.reserved, counters.peak_reserved);
  }
  if (used != counters.allocated || most_used != counters.peak_allocated) {
    return fmt::format("blocks add up to {} ({} at most), the model says {} ({})", used, most_used,
                       counters.allocated, counters.peak_allocated);
  }
  return std::nullopt;
}

}  // namespace plimsoll

#include "allocator/replay/replay_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace plimsoll {
namespace {

/// Half-open ranges of addresses that do not overlap. In sorted runs of bounded length, which is
/// several times as fast as a tree where there are many.
class Ranges {
 public:
  /// False if it overlaps one that is there.
  bool Add(Address begin, Address end) {
    const Place p = EndingAfter(begin);
    if (BeginsBefore(p, end)) return false;
    Insert(p, {begin, end});
    return true;
  }
  /// Like Add, and joins neighbours.
  bool AddJoining(Address begin, Address end) {
    const Place p = EndingAfter(begin);
    if (BeginsBefore(p, end)) return false;
    Range joined{begin, end};
    if (!AtEnd(p) && At(p).begin == end) {
      joined.end = At(p).end;
      Erase(p);
    }
    const Place before = begin > 0 ? EndingAfter(begin - 1) : p;
    if (begin > 0 && !AtEnd(before) && At(before).end == begin) {
      At(before).end = joined.end;
    } else {
      Insert(EndingAfter(begin), joined);
    }
    return true;
  }
  bool Contains(Address begin, Address end) const { return Holds(EndingAfter(begin), begin, end); }
  bool RemoveExactly(Address begin, Address end) {
    const Place p = EndingAfter(begin);
    if (AtEnd(p) || At(p).begin != begin || At(p).end != end) return false;
    Erase(p);
    return true;
  }
  /// Takes a part out of the range that holds it.
  bool Cut(Address begin, Address end) {
    const Place p = EndingAfter(begin);
    if (!Holds(p, begin, end)) return false;
    const Range old = At(p);
    Erase(p);
    if (end < old.end) Insert(EndingAfter(begin), {end, old.end});
    if (old.begin < begin) Insert(EndingAfter(old.begin), {old.begin, begin});
    return true;
  }
  bool Touches(Address begin, Address end) const { return BeginsBefore(EndingAfter(begin), end); }

 private:
  static constexpr std::size_t kLongestRun = 128;
  struct Range {
    Address begin = 0;
    Address end = 0;
  };
  using Run = std::vector<Range>;
  struct Place {
    std::size_t run = 0;
    std::size_t index = 0;
  };

  bool AtEnd(Place p) const { return p.run == runs_.size(); }
  const Range& At(Place p) const { return runs_[p.run][p.index]; }
  Range& At(Place p) { return runs_[p.run][p.index]; }
  bool BeginsBefore(Place p, Address end) const { return !AtEnd(p) && At(p).begin < end; }
  bool Holds(Place p, Address begin, Address end) const {
    return !AtEnd(p) && At(p).begin <= begin && At(p).end >= end;
  }

  /// The first range that ends after an address: the only one that may hold it.
  Place EndingAfter(Address address) const {
    const std::size_t run = CountUpTo(runs_, address, [](const Run& r) { return r.back().end; });
    if (run == runs_.size()) return {run, 0};
    return {run, CountUpTo(runs_[run], address, [](const Range& r) { return r.end; })};
  }
  /// How many of a sorted list end at or before an address; without a branch that would be guessed
  /// wrong half the time.
  template <typename List, typename EndOf>
  static std::size_t CountUpTo(const List& list, Address address, EndOf end_of) {
    std::size_t at = 0;
    for (std::size_t n = list.size(); n > 0;) {
      const std::size_t half = (n + 1) / 2;
      at += end_of(list[at + half - 1]) <= address ? half : 0;
      n -= half;
    }
    return at;
  }

  void Insert(Place p, Range range) {
    if (AtEnd(p)) {
      if (runs_.empty()) runs_.emplace_back();
      p = {runs_.size() - 1, runs_.back().size()};
    }
    Run& run = runs_[p.run];
    run.insert(run.begin() + static_cast<std::ptrdiff_t>(p.index), range);
    if (run.size() < kLongestRun) return;
    const auto half = run.begin() + static_cast<std::ptrdiff_t>(run.size() / 2);
    Run right(half, run.end());
    run.erase(half, run.end());
    runs_.insert(runs_.begin() + static_cast<std::ptrdiff_t>(p.run) + 1, std::move(right));
  }

  void Erase(Place p) {
    Run& run = runs_[p.run];
    run.erase(run.begin() + static_cast<std::ptrdiff_t>(p.index));
    if (run.empty()) runs_.erase(runs_.begin() + static_cast<std::ptrdiff_t>(p.run));
  }

  std::vector<Run> runs_;  // none is empty
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

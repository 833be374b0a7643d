// The free blocks of one pool and stream, in the order in which the allocator prefers them: by
// size, then by the release's tie-break. Sorted runs of bounded length: a search is a binary
// search, a change moves at most one run, and a trace with ten thousand free blocks stays fast.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/bytes.h"

namespace plimsoll {

class FreeList {
 public:
  struct Entry {
    Bytes size = 0;
    /// Decides between blocks of one size: an address or a number, by release.
    std::uint64_t tie = 0;
    std::uint32_t block = 0;

    /// A contradictory record may put two blocks at one address: the id tells them apart.
    friend bool operator<(const Entry& a, const Entry& b) {
      const bool before = (a.tie < b.tie) | ((a.tie == b.tie) & (a.block < b.block));
      return (a.size < b.size) | ((a.size == b.size) & before);
    }
  };
  struct Position {
    std::size_t run = 0;
    std::size_t index = 0;
  };

  bool Empty() const { return runs_.empty(); }
  Position First() const { return {}; }
  bool AtEnd(Position p) const { return p.run == runs_.size(); }
  const Entry& At(Position p) const { return runs_[p.run][p.index]; }
  Position Next(Position p) const {
    return p.index + 1 < runs_[p.run].size() ? Position{p.run, p.index + 1}
                                             : Position{p.run + 1, 0};
  }
  /// The last entry; the list must not be empty.
  Position Last() const { return {runs_.size() - 1, runs_.back().size() - 1}; }
  bool AtBeginning(Position p) const { return p.run == 0 && p.index == 0; }
  Position Previous(Position p) const {
    return p.index > 0 ? Position{p.run, p.index - 1}
                       : Position{p.run - 1, runs_[p.run - 1].size() - 1};
  }

  /// The first entry that is not before `key`.
  Position LowerBound(const Entry& key) const {
    // Few runs: nearly always one.
    std::size_t run = 0;
    if (runs_.size() > 8) {
      const auto it = std::partition_point(runs_.begin(), runs_.end(),
                                           [&](const Run& r) { return r.back() < key; });
      run = static_cast<std::size_t>(it - runs_.begin());
    } else {
      while (run < runs_.size() && runs_[run].back() < key) ++run;
    }
    if (run == runs_.size()) return {run, 0};
    return {run, Search(runs_[run], 0, runs_[run].size(), key)};
  }

  void Insert(const Entry& entry);
  void Erase(Position p);
  /// Where this entry is, which must be there. Where a record contradicts itself, segments may lie
  /// upon each other, so that several have the same size and tie.
  Position Find(const Entry& entry) const {
    Position p = LowerBound(entry);
    while (At(p).block != entry.block) p = Next(p);
    return p;
  }
  void Erase(const Entry& entry) { Erase(Find(entry)); }
  /// Erase and Insert at once: blocks mostly change their size by little, and so their place.
  void Replace(Position p, const Entry& entry);

 private:
  static constexpr std::size_t kLongestRun = 128;
  using Run = std::vector<Entry>;

  /// The first of [begin, end) that is not before `key`, without a branch that would be guessed
  /// wrong half the time.
  static std::size_t Search(const Run& run, std::size_t begin, std::size_t end, const Entry& key) {
    if (begin == end) return begin;
    const Entry* base = run.data() + begin;
    for (std::size_t n = end - begin; n > 1; n -= n / 2) {
      base += base[n / 2 - 1] < key ? n / 2 : 0;
    }
    return static_cast<std::size_t>(base - run.data()) + (*base < key ? 1 : 0);
  }

  std::vector<Run> runs_;  // none is empty
};

}  // namespace plimsoll

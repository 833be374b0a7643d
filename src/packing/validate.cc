#include "packing/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace plimsoll {
namespace {

/// One end of a lifetime. Where one buffer ends and another begins at the same tick, the end counts
/// first.
struct Change {
  Tick tick;
  bool begins;
  std::size_t buffer;
};

std::vector<Change> ChangesInOrder(const Problem& problem) {
  std::vector<Change> changes;
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
    if (problem.buffers[i].size == 0) continue;  // takes no room, so it cannot overlap
    changes.push_back({problem.buffers[i].lower, true, i});
    changes.push_back({problem.buffers[i].upper, false, i});
  }
  std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
    if (a.tick != b.tick) return a.tick < b.tick;
    return a.begins < b.begins;
  });
  return changes;
}

std::optional<std::string> FindBadOffset(const Problem& problem, const Packing& packing) {
  Bytes height = 0;
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
    const Bytes offset = packing.offsets[i];
    if (offset < 0) return fmt::format("buffer {} has the offset {}", i, offset);
    if (offset % problem.buffers[i].alignment != 0) {
      return fmt::format("buffer {} at {} is not aligned to {}", i, offset,
                         problem.buffers[i].alignment);
    }
    height = std::max(height, offset + problem.buffers[i].size);
  }
  if (height == packing.height) return std::nullopt;
  return fmt::format("the height is {}, not {}", height, packing.height);
}

}  // namespace

std::optional<std::string> FindFault(const Problem& problem, const Packing& packing) {
  if (packing.offsets.size() != problem.buffers.size()) {
    return fmt::format("{} offsets for {} buffers", packing.offsets.size(), problem.buffers.size());
  }
  if (auto bad = FindBadOffset(problem, packing)) return bad;
  // The buffers alive at the tick, by offset. As long as none overlap, a new one can only overlap
  // its neighbours.
  std::map<Bytes, std::size_t> alive;
  for (const Change& change : ChangesInOrder(problem)) {
    const Bytes offset = packing.offsets[change.buffer];
    if (!change.begins) {
      alive.erase(offset);
      continue;
    }
    const auto above = alive.lower_bound(offset);
    if (above != alive.end() && offset + problem.buffers[change.buffer].size > above->first) {
      return fmt::format("buffers {} and {} overlap", change.buffer, above->second);
    }
    if (above != alive.begin()) {
      const auto below = std::prev(above);
      if (below->first + problem.buffers[below->second].size > offset) {
        return fmt::format("buffers {} and {} overlap", below->second, change.buffer);
      }
    }
    alive.emplace(offset, change.buffer);
  }
  return std::nullopt;
}

}  // namespace plimsoll

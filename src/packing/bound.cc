#include "packing/bound.h"

#include <algorithm>
#include <utility>

namespace plimsoll {

Bytes MostAlive(const Problem& problem) {
  // Negative changes sort first: at the same tick, buffers end before others begin.
  std::vector<std::pair<Tick, Bytes>> changes;
  changes.reserve(problem.buffers.size() * 2);
  for (const Buffer& b : problem.buffers) {
    changes.emplace_back(b.lower, b.size);
    changes.emplace_back(b.upper, -b.size);
  }
  std::sort(changes.begin(), changes.end());
  Bytes alive = 0;
  Bytes most = 0;
  for (const auto& [tick, change] : changes) {
    alive += change;
    most = std::max(most, alive);
  }
  return most;
}

}  // namespace plimsoll

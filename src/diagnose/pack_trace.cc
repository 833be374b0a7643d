#include "diagnose/pack_trace.h"

#include <algorithm>

namespace plimsoll {

Problem PackingProblem(const Timeline& timeline, const Ledger& ledger) {
  Problem problem;
  problem.buffers.reserve(ledger.allocations.size());
  const auto end = static_cast<Tick>(timeline.events.size());
  for (const Allocation& a : ledger.allocations) {
    const Bytes requested = std::max<Bytes>(a.requested, 1);
    problem.buffers.push_back({.lower = a.made,
                               .upper = std::max<Tick>(std::min<Tick>(a.freed, end), a.made + 1),
                               .size = (requested + kMinBlock - 1) / kMinBlock * kMinBlock});
  }
  // The request that ended the run would have been alive too, if only for that moment.
  if (const std::optional<Position> fatal = FatalOutOfMemory(timeline, ledger)) {
    const Event& e = timeline.events[static_cast<std::size_t>(*fatal)];
    problem.buffers.push_back({.lower = *fatal,
                               .upper = *fatal + 1,
                               .size = (e.size + kMinBlock - 1) / kMinBlock * kMinBlock});
  }
  return problem;
}

}  // namespace plimsoll

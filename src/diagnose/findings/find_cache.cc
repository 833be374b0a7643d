// The cache of generation.
#include <fmt/format.h>

#include "diagnose/findings/findings.h"

namespace plimsoll {
std::vector<Finding> FindCache(const Evidence& e) {
  Bytes held = 0;
  for (AllocationIndex a = 0; a < e.trace.ledger.allocations.size(); ++a) {
    const Allocation& x = e.trace.ledger.allocations[a];
    if (x.made > e.instant) break;
    if (x.HeldAt(e.instant) && e.trace.attribution.reason[a] == Reason::kCache) held += x.block;
  }
  if (!Notable(held, e.account.allocated)) return {};
  Finding finding{.id = FindingId::kKvCache, .severity = Severity::kInfo};
  finding.title =
      fmt::format("{} are the keys and values of earlier tokens (KV cache)", FormatBytes(held));
  finding.evidence.push_back(
      "it grows by the same amount with every token of every sequence in the batch");
  finding.remedies.push_back({.change = "fewer sequences at a time, or shorter ones",
                              .saves = held / 2,
                              .remark = "for half of either",
                              .basis = Basis::kEstimated,
                              .lever = Lever::kSmallerBatch});
  return {finding};
}

}  // namespace plimsoll

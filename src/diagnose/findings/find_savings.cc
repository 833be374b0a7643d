// Of a job that is well: what would lower its peak.
#include <fmt/format.h>

#include "diagnose/findings/findings.h"
#include "diagnose/findings/remedies.h"

namespace plimsoll {
std::vector<Finding> FindSavings(const Evidence& e) {
  if (e.trace.phases.fatal || e.trace.phases.complete_steps == 0) return {};
  std::vector<Remedy> remedies = MemoryRemedies(e);
  if (remedies.empty()) return {};
  Finding finding{.id = FindingId::kSavings, .severity = Severity::kInfo};
  finding.title = fmt::format("what would lower the peak of {}", FormatBytes(e.account.allocated));
  finding.remedies = std::move(remedies);
  return {finding};
}

}  // namespace plimsoll

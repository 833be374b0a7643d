#include <fmt/format.h>

#include "diagnose/findings/allocator_study.h"
#include "diagnose/findings/findings.h"

namespace plimsoll {
namespace {

/// Less than this is the ordinary price of a cache.
constexpr double kMuchUnused = 0.12;
constexpr Bytes kWorthLooking = 256 * kMiB;

}  // namespace

std::vector<Finding> FindFragmentation(const Evidence& e) {
  const Ledger& ledger = e.trace.phases.ledger;
  // A job that ran out is told about by FindOutOfMemory.
  if (e.trace.phases.fatal || !ledger.has_segments) return {};
  const Bytes unused = ledger.peak_reserved - ledger.peak_allocated;
  if (unused < kWorthLooking || double(unused) < kMuchUnused * double(ledger.peak_reserved)) {
    return {};
  }
  const std::optional<AllocatorStudy> study = StudyAllocator(e.trace);
  if (!study) return {};
  std::vector<Remedy> remedies = SettingRemedies(*study, e.trace.phases.complete_steps > 0);
  // Without a remedy it is the cost of the job's own changes of shape.
  if (remedies.empty() || remedies.front().saves.value_or(0) <= 0) return {};
  Finding finding;
  finding.id = FindingId::kFragmentation;
  finding.severity = Severity::kInfo;
  finding.title = fmt::format("PyTorch held {} for {} of tensors: {} were held and not used",
                              FormatBytes(ledger.peak_reserved), FormatBytes(ledger.peak_allocated),
                              FormatBytes(unused));
  finding.evidence.push_back(
      "the model of the allocator decides all of this record as PyTorch did; "
      "plimsoll replay shows where the pieces are, plimsoll tune tries more");
  finding.remedies = std::move(remedies);
  return {finding};
}

}  // namespace plimsoll

// Pinned memory of the host, which PyTorch hands out in powers of two.
#include <fmt/format.h>

#include "diagnose/attribution/pinned_table.h"
#include "diagnose/findings/findings.h"

namespace plimsoll {
namespace {

/// The largest threshold, in MiB, above which most of what is lost lies. Larger requests are no
/// longer rounded, smaller ones go on sharing their pieces.
Bytes ThresholdFor(const std::vector<PinnedUse>& uses, Bytes lost) {
  constexpr double kMost = 0.9;
  for (Bytes mib = 1024; mib > 1; mib /= 2) {
    Bytes above = 0;
    for (const PinnedUse& use : uses)
      above += use.requested > mib * kMiB ? use.size - use.requested : 0;
    if (double(above) >= kMost * double(lost)) return mib;
  }
  return 1;
}

}  // namespace

std::vector<Finding> FindPinnedRounding(const Evidence& e) {
  constexpr double kMuchMore = 1.2;
  const std::vector<PinnedUse> uses = PinnedInUse(e.trace.timeline.pinned);
  Bytes taken = 0;
  Bytes requested = 0;
  for (const PinnedUse& use : uses) {
    taken += use.size;
    requested += use.requested;
  }
  const Bytes lost = taken - requested;
  if (requested == 0 || lost < 64 * kMiB || double(taken) < kMuchMore * double(requested))
    return {};
  Finding finding{.id = FindingId::kPinnedRounding, .severity = Severity::kLow};
  finding.title = fmt::format(
      "{} of the host's memory are pinned for requests of {}: PyTorch rounds them up to powers of "
      "two",
      FormatBytes(taken), FormatBytes(requested));
  finding.evidence.push_back(
      fmt::format("{:.1f} times what was asked for; pinned memory cannot be swapped, and where GPU "
                  "and host share one memory it is the GPU's too",
                  double(taken) / double(requested)));
  finding.remedies.push_back(
      {.change = "no rounding of large requests",
       .saves = lost,
       .remark = "of the host's memory; PyTorch 2.13 and newer have the setting",
       .basis = Basis::kEstimated,
       .lever = Lever::kAllocatorSetting,
       .code = {fmt::format("export PYTORCH_CUDA_ALLOC_CONF=pinned_max_round_threshold_mb:{}",
                            ThresholdFor(uses, lost))},
       .at_most = true});
  return {finding};
}

}  // namespace plimsoll

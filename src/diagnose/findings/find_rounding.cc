// Blocks that are much larger than the tensors in them.
#include <fmt/format.h>

#include <algorithm>

#include "answer/severity.h"
#include "diagnose/findings/findings.h"

namespace plimsoll {
std::vector<Finding> FindRounding(const Evidence& e) {
  const Bytes lost = BytesOf(e.account.lines, AccountItem::kRounding);
  if (!Notable(lost, e.account.allocated)) return {};
  Finding finding{.id = FindingId::kRoundingLoss,
                  .severity = LeastLow(SeverityOfShare(e.ShareOf(lost))),
                  .explains = lost};
  finding.title = fmt::format(
      "{} of what is allocated are rounding: blocks are larger than the tensors in them",
      FormatBytes(lost));
  const std::string& conf = e.trace.timeline.settings.conf;
  const bool asked_for = std::any_of(e.trace.timeline.settings.roundup_power2_divisions.begin(),
                                     e.trace.timeline.settings.roundup_power2_divisions.end(),
                                     [](std::int64_t n) { return n > 0; });
  if (!asked_for) return {finding};
  finding.evidence.push_back(
      fmt::format("roundup_power2_divisions is set{}", conf.empty() ? "" : " (" + conf + ")"));
  finding.remedies.push_back(
      {.change = "larger roundup_power2_divisions (8 wastes at most an eighth), or none",
       .saves = lost,
       .costs = "more different block sizes, which may fragment more: plimsoll tune tries them",
       .basis = Basis::kRecorded,
       .lever = Lever::kAllocatorSetting,
       .code = {"export PYTORCH_CUDA_ALLOC_CONF=roundup_power2_divisions:8"},
       .at_most = true});
  return {finding};
}

}  // namespace plimsoll

// Memory that is held for a reason which the account alone does not name: pools of CUDA graphs,
// rounding that was asked for, the cache of generation; and what a healthy job could do with less.
#include <fmt/format.h>

#include <algorithm>

#include "allocator/rules.h"
#include "diagnose/findings/allocator_study.h"
#include "diagnose/findings/findings.h"
#include "diagnose/findings/remedies.h"

namespace plimsoll {
namespace {

constexpr Bytes kWorthNaming = 64 * kMiB;
constexpr double kNotableShare = 0.1;

bool Notable(Bytes bytes, Bytes of) {
  return bytes >= kWorthNaming && double(bytes) >= kNotableShare * double(of);
}

}  // namespace

std::vector<Finding> FindPrivatePools(const Evidence& e) {
  const Timeline& t = e.trace.timeline;
  Bytes held = 0;
  Bytes used = 0;
  for (const Segment& s : t.segments) {
    if (t.pools[s.pool] == PoolId{}) continue;
    held += s.size;
    for (std::size_t b = s.first_block; b < s.first_block + s.block_count; ++b) {
      used += t.blocks[b].state == BlockState::kActive ? t.blocks[b].size : 0;
    }
  }
  if (!Notable(held, e.trace.ledger.peak_reserved)) return {};
  Finding finding{.id = FindingId::kPrivatePools, .severity = Severity::kInfo};
  finding.title = fmt::format(
      "{} lie in memory pools of their own (CUDA graphs, torch.cuda.MemPool), which nothing else "
      "can use",
      FormatBytes(held));
  finding.evidence.push_back(fmt::format(
      "when the record was made, {} of them were in use; a graph keeps the rest for its replays",
      FormatBytes(used)));
  return {finding};
}

std::vector<Finding> FindRounding(const Evidence& e) {
  const Bytes lost = BytesOf(e.account.lines, AccountItem::kRounding);
  if (!Notable(lost, e.account.allocated)) return {};
  Finding finding{.id = FindingId::kRoundingLoss, .severity = Severity::kLow};
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
                              .costs = "for half of either",
                              .basis = Basis::kEstimated,
                              .lever = Lever::kSmallerBatch});
  return {finding};
}

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

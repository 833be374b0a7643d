#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/median.h"
#include "diagnose/attribution/holders.h"
#include "diagnose/findings/findings.h"
#include "diagnose/verdict.h"

namespace plimsoll {
namespace {

/// Growth below this much a step, or this share of the peak, will not end a run.
constexpr Bytes kLeastLeak = kMiB;
constexpr double kLeastLeakShare = 0.0005;

struct Growth {
  std::map<std::size_t, Bytes> by_step;
  std::map<std::string, Bytes> by_place;
  std::vector<AllocationIndex> all;
  Bytes total = 0;
  std::size_t sites_in_modules = 0;
};

/// The step (from 1) that something was made in: what comes after the optimizer belongs to the step
/// that just ended.
std::size_t StepOf(const Phases& p, const Allocation& a) {
  const std::size_t gap = p.GapOf(a.made);
  const bool next_began = gap < p.backwards.size() && p.backwards[gap].forward_start &&
                          a.made >= *p.backwards[gap].forward_start;
  if (next_began) return static_cast<std::size_t>(p.backwards[gap].step) + 1;
  return gap == 0 ? 1 : static_cast<std::size_t>(p.backwards[gap - 1].step) + 1;
}

Growth Collect(const Evidence& e) {
  const Phases& p = e.trace.phases;
  Growth growth;
  for (const KeptSite& site : e.trace.attribution.kept) {
    bool counted = false;
    for (AllocationIndex a : site.allocations) {
      if (e.trace.attribution.category[a] != Category::kKept) continue;
      const Allocation& x = p.at(a);
      growth.by_step[StepOf(p, x)] += x.block;
      growth.by_place[PlaceOf(p, e.trace.attribution, a)] += x.block;
      growth.total += x.block;
      growth.all.push_back(a);
      counted |= (p.Signs(x) & kSignModuleCall) != 0;
    }
    growth.sites_in_modules += counted ? 1 : 0;
  }
  return growth;
}

/// What a typical step adds: what was made once, however large, is no growth. The last round of a
/// job that ran out may be unfinished.
Bytes GrowthOfAStep(const Growth& growth, bool ran_out) {
  std::size_t last = growth.by_step.rbegin()->first;
  const std::size_t first = growth.by_step.begin()->first;
  if (ran_out && last > first) --last;
  std::vector<Bytes> steps;
  for (std::size_t step = first; step <= last; ++step) {
    const auto found = growth.by_step.find(step);
    steps.push_back(found == growth.by_step.end() ? 0 : found->second);
  }
  return LowerMedian(steps);
}

StackId LargestStack(const Phases& p, const std::vector<AllocationIndex>& kept) {
  std::map<StackId, Bytes> by_stack;
  for (AllocationIndex a : kept) by_stack[p.at(a).stack] += p.at(a).block;
  const auto largest =
      std::max_element(by_stack.begin(), by_stack.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return largest->first;
}

Bytes HeldAtInstant(const Evidence& e, const Growth& growth) {
  Bytes held = 0;
  for (AllocationIndex a : growth.all) {
    if (e.trace.phases.at(a).HeldAt(e.instant)) held += e.trace.phases.at(a).block;
  }
  return held;
}

}  // namespace

std::vector<Finding> FindLeak(const Evidence& e) {
  const Growth growth = Collect(e);
  if (growth.by_step.size() < 2) return {};
  const std::size_t first = growth.by_step.begin()->first;
  const std::size_t last = growth.by_step.rbegin()->first;
  const Bytes slope = GrowthOfAStep(growth, e.trace.phases.fatal.has_value());
  const std::string line =
      OwnLine(e.trace.phases, e.trace.attribution, LargestStack(e.trace.phases, growth.all));
  const auto largest =
      std::max_element(growth.by_place.begin(), growth.by_place.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  const std::string where = line.empty() ? largest->first : line;
  const Bytes threshold =
      std::max(kLeastLeak,
               static_cast<Bytes>(kLeastLeakShare * double(e.trace.phases.ledger.peak_allocated)));
  Finding finding;
  finding.evidence.push_back(fmt::format("{} a step, from step {} to {} of {}", FormatBytes(slope),
                                         first, last, e.trace.phases.steps));
  finding.evidence.push_back(
      fmt::format("{} allocations, {} in all, none released while later ones "
                  "were made",
                  growth.all.size(), FormatBytes(growth.total)));
  if (slope < threshold) {
    finding.id = FindingId::kCrumbs;
    finding.severity = Severity::kInfo;
    finding.title =
        fmt::format("{} a step stay behind from {}: harmless", FormatBytes(slope), where);
    return {finding};
  }
  finding.id = FindingId::kLeak;
  finding.severity = Severity::kHigh;
  finding.event = e.instant;
  finding.title = fmt::format("{} more each step, from {}", FormatBytes(slope), where);
  finding.evidence.push_back(
      fmt::format("most of it ({}) was made at {}", FormatBytes(largest->second), largest->first));
  const bool graph = growth.sites_in_modules >= 3;
  if (graph) {
    finding.evidence.push_back(fmt::format(
        "it comes from {} places inside modules: a whole graph stays, because something keeps a "
        "result together with its history",
        growth.sites_in_modules));
  }
  if (e.trace.phases.fatal) {
    finding.evidence.push_back("it ran out " + PhaseAt(e.trace.phases, *e.trace.phases.fatal));
  } else if (slope > 0) {
    finding.evidence.push_back(
        fmt::format("every further GiB lasts {:.1f} steps", double(kGiB) / double(slope)));
  }
  finding.remedies.push_back(
      {.change = graph ? "keep a number, not a graph: append loss.item() or "
                         "outputs.detach().cpu(), where it "
                         "is kept after " +
                             where
                       : "move what " + where + " keeps off the GPU (.cpu()), or keep less of it",
       .saves = HeldAtInstant(e, growth),
       .costs = graph ? "" : "a copy to the host each step",
       .basis = Basis::kRecorded,
       .lever = Lever::kReleaseTensors,
       .code = {graph ? "losses.append(loss.item())        # not losses.append(loss)"
                      : "kept.append(outputs.detach().cpu())"}});
  return {finding};
}

}  // namespace plimsoll

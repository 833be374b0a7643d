#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "diagnose/findings.h"
#include "diagnose/holders.h"

namespace plimsoll {
namespace {

/// Growth below this much a step, or this share of the peak, will not end a run.
constexpr Bytes kLeastLeak = kMiB;
constexpr double kLeastLeakShare = 0.0005;

struct Growth {
  std::map<std::size_t, Bytes> by_gap;
  std::map<std::string, Bytes> by_place;
  std::vector<AllocationIndex> all;
  Bytes total = 0;
  std::size_t sites_in_modules = 0;
};

Growth Collect(const Evidence& e) {
  const Phases& p = e.phases;
  Growth growth;
  for (const KeptSite& site : e.attribution.kept) {
    bool counted = false;
    for (AllocationIndex a : site.allocations) {
      if (e.attribution.category[a] != Category::kKept) continue;
      const Allocation& x = p.at(a);
      growth.by_gap[p.GapOf(x.made)] += x.block;
      growth.by_place[PlaceOf(p, e.attribution, a)] += x.block;
      growth.total += x.block;
      growth.all.push_back(a);
      counted |= (p.Signs(x) & kSignModuleCall) != 0;
    }
    growth.sites_in_modules += counted ? 1 : 0;
  }
  return growth;
}

/// The line of the loop that makes what is kept: on the way from the program's outermost frame to
/// where most of it was made, the first line that ordinary activations do not come through.
std::string KeepingLine(const Evidence& e, const std::vector<AllocationIndex>& kept) {
  const Phases& p = e.phases;
  std::map<StackId, Bytes> by_stack;
  for (AllocationIndex a : kept) by_stack[p.at(a).stack] += p.at(a).block;
  const auto largest =
      std::max_element(by_stack.begin(), by_stack.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  const std::vector<std::string> chain = p.stacks.UserFrames(largest->first);
  if (chain.empty()) return "";
  std::set<std::string> ordinary;
  std::set<StackId> seen;
  for (AllocationIndex a = 0; a < p.ledger.allocations.size(); ++a) {
    if (e.attribution.category[a] != Category::kActivations) continue;
    if (!seen.insert(p.at(a).stack).second) continue;
    for (std::string& frame : p.stacks.UserFrames(p.at(a).stack)) ordinary.insert(std::move(frame));
  }
  for (auto frame = chain.rbegin(); frame != chain.rend(); ++frame) {
    if (!ordinary.contains(*frame)) return *frame;
  }
  return chain.front();
}

Bytes HeldAtInstant(const Evidence& e, const Growth& growth) {
  Bytes held = 0;
  for (AllocationIndex a : growth.all) {
    if (e.phases.at(a).HeldAt(e.instant)) held += e.phases.at(a).block;
  }
  return held;
}

}  // namespace

std::vector<Finding> FindLeak(const Evidence& e) {
  const Growth growth = Collect(e);
  if (growth.by_gap.size() < 2) return {};
  const std::size_t first = growth.by_gap.begin()->first;
  const std::size_t last = growth.by_gap.rbegin()->first;
  // The last round may be unfinished: the slope is that of the whole ones before it.
  const Bytes unfinished = e.phases.fatal ? growth.by_gap.rbegin()->second : 0;
  const auto rounds = static_cast<Bytes>(last - first + (e.phases.fatal ? 0 : 1));
  const Bytes slope = (growth.total - unfinished) / std::max<Bytes>(rounds, 1);
  const std::string line = KeepingLine(e, growth.all);
  const auto largest =
      std::max_element(growth.by_place.begin(), growth.by_place.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  const std::string where = line.empty() ? largest->first : line;
  const Bytes threshold = std::max(
      kLeastLeak, static_cast<Bytes>(kLeastLeakShare * double(e.phases.ledger.peak_allocated)));
  Finding finding;
  finding.evidence.push_back(fmt::format("{} a step, from step {} to {} of {}", FormatBytes(slope),
                                         first, last, e.phases.backwards.size()));
  finding.evidence.push_back(
      fmt::format("{} allocations, {} in all, none released while later ones "
                  "were made",
                  growth.all.size(), FormatBytes(growth.total)));
  if (slope < threshold) {
    finding.id = "crumbs";
    finding.severity = Severity::kInfo;
    finding.title =
        fmt::format("{} a step stay behind from {}: harmless", FormatBytes(slope), where);
    return {finding};
  }
  finding.id = "leak";
  finding.severity = Severity::kHigh;
  finding.title = fmt::format("{} more each step, kept by {}", FormatBytes(slope), where);
  finding.evidence.push_back(
      fmt::format("most of it ({}) was made at {}", FormatBytes(largest->second), largest->first));
  const bool graph = growth.sites_in_modules >= 3;
  if (graph) {
    finding.evidence.push_back(fmt::format(
        "it comes from {} places inside modules: a whole graph stays, because something keeps a "
        "result together with its history",
        growth.sites_in_modules));
  }
  if (e.phases.fatal) {
    finding.evidence.push_back(fmt::format("it ran out in step {}", last + 1));
  } else if (slope > 0) {
    finding.evidence.push_back(
        fmt::format("every further GiB lasts {:.1f} steps", double(kGiB) / double(slope)));
  }
  finding.remedies.push_back(
      {.change =
           graph ? "keep a number, not a graph: append loss.item() or outputs.detach().cpu() "
                   "at " +
                       where
                 : "move what is kept at " + where + " off the GPU (.cpu()), or keep less of it",
       .saves = HeldAtInstant(e, growth),
       .costs = graph ? "" : "a copy to the host each step",
       .basis = "recorded"});
  return {finding};
}

}  // namespace plimsoll

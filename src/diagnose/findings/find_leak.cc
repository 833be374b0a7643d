// Memory that grows with the steps.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>

#include "answer/severity.h"
#include "base/median.h"
#include "diagnose/attribution/holders.h"
#include "diagnose/findings/findings.h"
#include "diagnose/phases/phase_at.h"

namespace plimsoll {
namespace {

/// A leak is judged by what it adds in so many further steps.
constexpr Bytes kHorizon = 1000;
/// From so many places inside modules on, what stays is a graph.
constexpr std::size_t kPlacesOfAGraph = 3;

enum class LeakKind : std::uint8_t { kTensors, kGraph, kOptimizerState, kGradients };

struct LeakGrowth {
  std::map<std::size_t, Bytes> by_step;  // counted from 1
  std::map<std::string, Bytes> by_place;
  std::map<StackId, Bytes> by_stack;
  std::array<Bytes, 3> by_kind{};
  std::size_t count = 0;
  Bytes total = 0;
  /// Of these, there when the record began.
  Bytes earlier = 0;
  Bytes at_instant = 0;
  std::size_t sites_in_modules = 0;

  template <typename Key>
  static const std::pair<const Key, Bytes>& Largest(const std::map<Key, Bytes>& parts) {
    return *std::max_element(parts.begin(), parts.end(),
                             [](const auto& a, const auto& b) { return a.second < b.second; });
  }
  LeakKind Kind() const {
    const auto most = std::max_element(by_kind.begin(), by_kind.end()) - by_kind.begin();
    if (most == static_cast<int>(KeptKind::kOptimizerState)) return LeakKind::kOptimizerState;
    if (most == static_cast<int>(KeptKind::kGradients)) return LeakKind::kGradients;
    return sites_in_modules >= kPlacesOfAGraph ? LeakKind::kGraph : LeakKind::kTensors;
  }
};

/// The step that something was made in: what comes after the optimizer belongs to the step that
/// just ended.
std::size_t LeakStepOf(const Phases& p, const Allocation& a) {
  const std::size_t gap = p.GapOf(a.made);
  const bool next_began = gap < p.backwards.size() && p.backwards[gap].forward_start &&
                          a.made >= *p.backwards[gap].forward_start;
  if (next_began) return static_cast<std::size_t>(p.backwards[gap].step) + 1;
  return gap == 0 ? 1 : static_cast<std::size_t>(p.backwards[gap - 1].step) + 1;
}

LeakGrowth CollectKept(const Evidence& e) {
  const Phases& p = e.trace.phases;
  LeakGrowth growth;
  for (const KeptSite& site : e.trace.attribution.kept) {
    bool in_module = false;
    for (AllocationIndex a : site.allocations) {
      if (e.trace.attribution.category[a] != Category::kKept) continue;
      const Allocation& x = p.at(a);
      growth.total += x.block;
      ++growth.count;
      growth.by_kind[static_cast<std::size_t>(site.kind)] += x.block;
      growth.by_place[PlaceOf(p, e.trace.attribution, a)] += x.block;
      growth.by_stack[x.stack] += x.block;
      if (x.HeldAt(e.instant)) growth.at_instant += x.block;
      if (x.made == kBefore) {
        growth.earlier += x.block;
      } else {
        growth.by_step[LeakStepOf(p, x)] += x.block;
      }
      in_module |= (p.Signs(x) & kSignModuleCall) != 0;
    }
    growth.sites_in_modules += in_module ? 1 : 0;
  }
  return growth;
}

/// What one round adds, and how many steps there are from one to the next.
struct LeakPace {
  Bytes round = 0;
  double steps = 1;

  double ByStep() const { return double(round) / steps; }
  std::string Words() const {
    if (steps < 1.5) return "each step";
    return fmt::format("every {:.0f} steps", steps);
  }
};

/// What a large round adds: the largest that, with those not far below it, makes most of the
/// growth. A first step may have kept much more, once: a library's workspace.
Bytes LargeRound(const LeakGrowth& growth) {
  std::vector<Bytes> rounds;
  Bytes all = 0;
  for (const auto& [step, bytes] : growth.by_step) {
    rounds.push_back(bytes);
    all += bytes;
  }
  std::ranges::sort(rounds, std::greater());
  Bytes together = 0;
  std::size_t counted = 0;
  for (const Bytes large : rounds) {
    for (; counted < rounds.size() && rounds[counted] >= large / 4; ++counted) {
      together += rounds[counted];
    }
    if (2 * together >= all) return large;
  }
  return rounds.front();
}

/// The last round of a job that ran out may be unfinished, and a step may add next to nothing where
/// something else is kept every few steps.
LeakPace PaceOf(const LeakGrowth& growth) {
  const Bytes most = LargeRound(growth);
  std::vector<Bytes> rounds;
  std::size_t first = 0;
  std::size_t last = 0;
  for (const auto& [step, bytes] : growth.by_step) {
    if (bytes < most / 4) continue;
    if (rounds.empty()) first = step;
    last = step;
    rounds.push_back(bytes);
  }
  LeakPace pace{.round = UpperMedian(rounds)};
  if (rounds.size() > 1) pace.steps = double(last - first) / double(rounds.size() - 1);
  return pace;
}

std::string WhatIsKept(LeakKind kind) {
  switch (kind) {
    case LeakKind::kGraph:
      return "a whole graph stays, because something keeps a result together with its history";
    case LeakKind::kOptimizerState:
      return "each time a whole state of an optimizer is made, while the older ones stay: the "
             "optimizer is made anew, and something (a list, a scheduler) keeps the old one";
    case LeakKind::kGradients:
      return "each time a whole set of gradients is made, while the older ones stay: something "
             "keeps them beyond zero_grad()";
    case LeakKind::kTensors:
      break;
  }
  return "";
}

Remedy LetGo(LeakKind kind, const std::string& where, Bytes saves) {
  Remedy remedy{.saves = saves, .basis = Basis::kRecorded, .lever = Lever::kReleaseTensors};
  switch (kind) {
    case LeakKind::kGraph:
      remedy.change =
          "keep a number, not a graph: append loss.item() or outputs.detach().cpu(), "
          "where it is kept after " +
          where;
      remedy.code = {"losses.append(loss.item())        # not losses.append(loss)"};
      break;
    case LeakKind::kOptimizerState:
      remedy.change = "make the optimizer once, before the loop, or let go of the old one first";
      break;
    case LeakKind::kGradients:
      remedy.change = "copy the gradients that are kept to the host, or keep less of them";
      remedy.costs = "a copy to the host each step";
      remedy.code = {"kept.append([p.grad.cpu() for p in model.parameters()])"};
      break;
    case LeakKind::kTensors:
      remedy.change = "move what " + where + " keeps off the GPU (.cpu()), or keep less of it";
      remedy.costs = "a copy to the host each step";
      remedy.code = {"kept.append(outputs.detach().cpu())"};
      break;
  }
  return remedy;
}

/// When in the step most of it is made, and through which line of the loop.
std::string MadeWhen(const Evidence& e, const LeakGrowth& growth, const std::string& where) {
  const Phases& p = e.trace.phases;
  std::map<std::string, Bytes> moments;
  for (const KeptSite& site : e.trace.attribution.kept) {
    for (AllocationIndex a : site.allocations) {
      const Allocation& x = p.at(a);
      if (x.made == kBefore) continue;
      const std::size_t gap = p.GapOf(x.made);
      const bool after = gap == p.backwards.size();
      const Position optimizer_end = after ? p.last_optimizer_end : p.backwards[gap].optimizer_end;
      const bool begun = !after && x.made >= p.backwards[gap].forward_start.value_or(kNotYet);
      const bool backward = !after && x.made >= p.backwards[gap].start;
      moments[backward                  ? "in the backward"
              : begun                   ? "in the forward"
              : x.made <= optimizer_end ? "in the optimizer's step"
                                        : "between the optimizer's step and the next forward"] +=
          x.block;
    }
  }
  if (moments.empty()) return "";
  std::string text = "made " + LeakGrowth::Largest(moments).first;
  const std::vector<CallLine> calls =
      p.stacks.CallLines(LeakGrowth::Largest(growth.by_stack).first);
  const std::string call = calls.empty() ? "" : p.stacks.Where(calls.front().frame);
  const bool new_line = call != where && call != LeakGrowth::Largest(growth.by_place).first;
  if (!call.empty() && new_line) text += ", by the model called at " + call;
  return text;
}

/// The variable that keeps most of it, where the record tells.
std::string KeptInWhat(const Evidence& e) {
  const Phases& p = e.trace.phases;
  const OwnerNames names = OwnersOf(p.timeline);
  if (names.empty()) return "";
  std::map<StringId, Owner> by_name;
  for (const KeptSite& site : e.trace.attribution.kept) {
    for (AllocationIndex a : site.allocations) {
      const StringId name = OwnerOf(names, p.at(a));
      if (e.trace.attribution.category[a] != Category::kKept || !name.valid()) continue;
      Owner& owner = by_name[name];
      owner.name = p.timeline.stacks.strings[name];
      owner.bytes += p.at(a).block;
      ++owner.count;
    }
  }
  std::vector<Owner> owners;
  for (auto& [name, owner] : by_name) owners.push_back(std::move(owner));
  owners = FoldedOwners(owners);
  if (owners.empty()) return "";
  return fmt::format("{} of it is held by {}", FormatBytes(owners[0].bytes), owners[0].name);
}

}  // namespace

std::vector<Finding> FindLeak(const Evidence& e) {
  const Phases& p = e.trace.phases;
  const LeakGrowth growth = CollectKept(e);
  if (growth.by_step.empty()) return {};
  const LeakPace pace = PaceOf(growth);
  const LeakKind kind = growth.Kind();
  const std::string line =
      OwnLine(p, e.trace.attribution, LeakGrowth::Largest(growth.by_stack).first);
  const auto& [place, in_place] = LeakGrowth::Largest(growth.by_place);
  const std::string where = line.empty() ? place : line;

  Finding finding;
  finding.severity = SeverityOfShare(pace.ByStep() * double(kHorizon) / double(e.Whole()));
  finding.explains = growth.at_instant;
  finding.evidence.push_back(fmt::format("{} {}, from step {} to {} of {}", FormatBytes(pace.round),
                                         pace.Words(), growth.by_step.begin()->first,
                                         growth.by_step.rbegin()->first, p.steps));
  finding.evidence.push_back(
      fmt::format("{} allocations, {} in all, none released while later ones were made",
                  growth.count, FormatBytes(growth.total)));
  if (growth.earlier > 0) {
    finding.evidence.push_back(
        fmt::format("{} of it was there when the record began", FormatBytes(growth.earlier)));
  }
  const double steps_a_gib = double(kGiB) / std::max(1.0, pace.ByStep());
  if (finding.severity == Severity::kInfo) {
    finding.id = FindingId::kCrumbs;
    finding.title = fmt::format("{} {} stay behind from {}: a GiB after {:.0f} steps",
                                FormatBytes(pace.round), pace.Words(), where, steps_a_gib);
    return {finding};
  }
  finding.id = FindingId::kLeak;
  finding.event = e.instant;
  finding.title = fmt::format("{} more {}, from {}", FormatBytes(pace.round), pace.Words(), where);
  finding.evidence.push_back(
      fmt::format("most of it ({}) was made at {}", FormatBytes(in_place), place));
  if (const std::string when = MadeWhen(e, growth, where); !when.empty()) {
    finding.evidence.push_back(when);
  }
  if (const std::string keeper = KeptInWhat(e); !keeper.empty()) {
    finding.evidence.push_back(keeper);
  }
  if (kind == LeakKind::kGraph) {
    finding.evidence.push_back(fmt::format("it comes from {} places inside modules: {}",
                                           growth.sites_in_modules, WhatIsKept(kind)));
  } else if (kind != LeakKind::kTensors) {
    finding.evidence.push_back(WhatIsKept(kind));
  }
  finding.evidence.push_back(
      p.fatal ? "it ran out " + PhaseAt(p, *p.fatal)
              : fmt::format("every further GiB lasts {:.1f} steps", steps_a_gib));
  finding.remedies.push_back(LetGo(kind, where, growth.at_instant));
  return {finding};
}

}  // namespace plimsoll

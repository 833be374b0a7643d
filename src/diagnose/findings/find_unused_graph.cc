// A forward whose graph is held for nothing: a teacher or a target network without no_grad(), or a
// validation that leaves gradients on. Two signs tell it. Either no backward releases what the
// forward saved; or one does, but the gradients that it makes on the way are of parameters that no
// optimizer has.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "answer/severity.h"
#include "base/hash.h"
#include "diagnose/findings/findings.h"

namespace plimsoll {
namespace {

/// Nearly all that a call saved must go unused: a model's results may outlive its backward.
constexpr double kNearlyAllOfIt = 0.9;
/// A call without gradients leaves its results alone. One with them leaves a good part of all that
/// it made, from several places.
constexpr double kGoodPart = 0.3;
constexpr std::size_t kLeastPlaces = 4;

/// What the calls of models from one line made before the backwards of a record.
struct CallsFromLine {
  Bytes made = 0;
  Bytes used = 0;    // alive when the backward began, and released by one
  Bytes unused = 0;  // alive then, and released otherwise
  std::size_t count = 0;
  std::set<std::uint32_t> places;
  std::set<std::uint32_t> unused_places;
  std::set<std::size_t> passes;
  StackId stack;

  bool SavesForNothing() const {
    return double(unused) >= kNearlyAllOfIt * double(unused + used) &&
           double(unused) >= kGoodPart * double(made) && unused_places.size() >= kLeastPlaces &&
           double(unused_places.size()) >= kGoodPart * double(places.size());
  }
};
using CallsByLine = std::map<std::uint32_t, CallsFromLine>;

bool ReleasedByBackward(const Phases& p, Position released) {
  const std::size_t k = p.GapOf(released);
  return k < p.backwards.size() && released >= p.backwards[k].start;
}

/// The last pass in which each line called a model.
std::map<std::uint32_t, std::size_t> LastPasses(const Phases& p) {
  std::map<std::uint32_t, std::size_t> last;
  for (const Allocation& x : p.Between(kBefore, p.end)) {
    const std::uint32_t caller = p.stacks.of(x.stack).caller;
    if (caller != 0) last[caller] = p.GapOf(x.made);
  }
  return last;
}

CallsByLine CollectCalls(const Evidence& e) {
  const Phases& p = e.trace.phases;
  const auto last_passes = LastPasses(p);
  CallsByLine calls;
  for (std::size_t k = 0; k < p.backwards.size(); ++k) {
    const Backward& b = p.backwards[k];
    if (p.CutShort(b)) continue;
    for (const Allocation& x : p.Between(k == 0 ? kBefore : p.backwards[k - 1].end, b.start)) {
      const StackTraits& traits = p.stacks.of(x.stack);
      if (traits.caller == 0 || p.ThreadOf(x) != Thread::kMain) continue;
      CallsFromLine& call = calls[traits.caller];
      call.made += x.block;
      call.places.insert(traits.site);
      const Position released = p.Released(x);
      const Category category = e.trace.attribution.category[p.IndexOf(x)];
      if (released <= b.start || category == Category::kKept || category == Category::kParameters) {
        continue;
      }
      if (released != kNotYet && ReleasedByBackward(p, released)) {
        call.used += x.block;
        continue;
      }
      // Where nothing was released before the end, the next call shows that the backward is over.
      if (released == kNotYet && last_passes.at(traits.caller) <= k) continue;
      call.unused += x.block;
      call.unused_places.insert(traits.site);
      call.passes.insert(k);
      call.stack = x.stack;
      ++call.count;
    }
  }
  return calls;
}

/// What the calls from one line hold at the instant.
Bytes HeldByCalls(const Evidence& e, std::uint32_t caller) {
  const Phases& p = e.trace.phases;
  Bytes held = 0;
  for (const Allocation& x : p.Between(kBefore, p.end)) {
    if (x.made > e.instant) break;
    const Category category = e.trace.attribution.category[p.IndexOf(x)];
    const bool passing = category == Category::kActivations || category == Category::kTemporaries;
    if (passing && x.HeldAt(e.instant) && p.stacks.of(x.stack).caller == caller) held += x.block;
  }
  return held;
}

std::string LineOfCall(const Phases& p, StackId stack) {
  const std::vector<CallLine> lines = p.stacks.CallLines(stack);
  return lines.empty() ? p.stacks.WhereOf(stack) : p.stacks.Where(lines.front().frame);
}

Remedy WithoutGradients(const std::string& line, Bytes saves) {
  return {.change = "torch.no_grad() around the call at " + line,
          .saves = saves,
          .basis = Basis::kRecorded,
          .lever = Lever::kEvaluation,
          .code = {"with torch.no_grad():", "    targets = teacher(x)"},
          .at_most = true};
}

/// Gradients that the first backward made and that nobody ever cleared, while the others came and
/// went with the steps, and that have no state where the others have.
std::vector<AllocationIndex> GradientsOfNoOptimizer(const Evidence& e) {
  const Phases& p = e.trace.phases;
  HashMap<Bytes, std::int64_t> states;
  Bytes all_states = 0;
  for (AllocationIndex a = 0; a < p.ledger.allocations.size(); ++a) {
    if (e.trace.attribution.category[a] != Category::kOptimizerState) continue;
    ++states[p.at(a).requested];
    all_states += p.at(a).block;
  }
  std::vector<AllocationIndex> stay;
  Bytes of_stay = 0;
  Bytes of_others = 0;
  for (AllocationIndex g : p.backwards.front().gradients) {
    const bool stays = p.Released(p.at(g)) > p.backwards.back().end;
    if (stays && states.contains(p.at(g).requested)) return {};
    if (stays) stay.push_back(g);
    (stays ? of_stay : of_others) += p.at(g).block;
  }
  const double least = 0.1 * double(of_stay + of_others);
  const bool both = double(of_stay) >= least && double(of_others) >= least && all_states > 0;
  return both && stay.size() >= kLeastPlaces ? stay : std::vector<AllocationIndex>{};
}

/// The line whose model's activations go while those gradients are made: autograd runs through one
/// model after the other.
std::optional<StackId> CallBehind(const Evidence& e, const std::vector<AllocationIndex>& stay) {
  const Phases& p = e.trace.phases;
  const Backward& b = p.backwards.front();
  std::set<AllocationIndex> unowned(stay.begin(), stay.end());
  std::map<std::uint32_t, std::vector<Position>> releases;
  std::map<std::uint32_t, StackId> stacks;
  for (const Allocation& x : p.Between(kBefore, b.start)) {
    const std::uint32_t caller = p.stacks.of(x.stack).caller;
    if (caller == 0 || p.Released(x) < b.start || p.Released(x) > b.end) continue;
    releases[caller].push_back(p.Released(x));
    stacks[caller] = x.stack;
  }
  for (auto& [caller, positions] : releases) {
    std::ranges::sort(positions);
    const Position from = positions[positions.size() / 10];
    const Position until = positions[positions.size() - 1 - positions.size() / 10];
    double of_it = 0;
    double all = 0;
    for (AllocationIndex g : b.gradients) {
      if (p.at(g).made < from || p.at(g).made > until) continue;
      all += double(p.at(g).block);
      if (unowned.contains(g)) of_it += double(p.at(g).block);
    }
    if (all > 0 && of_it >= kNearlyAllOfIt * all) return stacks.at(caller);
  }
  return std::nullopt;
}

std::optional<Finding> FindModelOfNoOptimizer(const Evidence& e) {
  const Phases& p = e.trace.phases;
  if (p.complete_steps < 2) return std::nullopt;
  const std::vector<AllocationIndex> stay = GradientsOfNoOptimizer(e);
  if (stay.empty()) return std::nullopt;
  const std::optional<StackId> call = CallBehind(e, stay);
  if (!call) return std::nullopt;
  Bytes gradients = 0;
  for (AllocationIndex g : stay) {
    if (p.at(g).HeldAt(e.instant)) gradients += p.at(g).block;
  }
  const std::string line = LineOfCall(p, *call);
  const Bytes activations = HeldByCalls(e, p.stacks.of(*call).caller);
  Finding finding{.id = FindingId::kUnusedGraph, .explains = activations + gradients};
  finding.severity = SeverityOfShare(e.ShareOf(finding.explains));
  finding.title = fmt::format(
      "{} of activations and {} of gradients are of a model that no optimizer updates, called at "
      "{}",
      FormatBytes(activations), FormatBytes(gradients), line);
  finding.evidence.push_back(fmt::format(
      "{} gradients were made in the first backward and never cleared; the others came and went "
      "with each step",
      stay.size()));
  finding.evidence.push_back("no optimizer state has their sizes");
  finding.remedies.push_back(WithoutGradients(line, finding.explains));
  finding.remedies.back().remark =
      "where gradients must go through it: model.requires_grad_(False) saves the gradients alone";
  return finding;
}

}  // namespace

std::vector<Finding> FindUnusedGraph(const Evidence& e) {
  const Phases& p = e.trace.phases;
  std::vector<Finding> findings;
  if (!p.framed || p.backwards.empty()) return findings;
  for (const auto& [caller, call] : CollectCalls(e)) {
    if (!call.SavesForNothing()) continue;
    const std::string line = LineOfCall(p, call.stack);
    Finding finding{.id = FindingId::kUnusedGraph, .explains = HeldByCalls(e, caller)};
    finding.severity = SeverityOfShare(e.ShareOf(finding.explains));
    finding.event = e.instant;
    finding.title = fmt::format(
        "{} of activations are held for a backward that never comes, of the model called at {}",
        FormatBytes(finding.explains), line);
    finding.evidence.push_back(fmt::format(
        "{} blocks from {} places inside that model outlived the {} of {} step{}; none was "
        "released by {}",
        call.count, call.unused_places.size(), call.passes.size() == 1 ? "backward" : "backwards",
        call.passes.size(), call.passes.size() == 1 ? "" : "s",
        call.passes.size() == 1 ? "it" : "them"));
    finding.evidence.push_back(
        "so no gradient goes through this call; PyTorch saves for one all the same, as long as "
        "gradients are on and the result is held");
    finding.remedies.push_back(WithoutGradients(line, finding.explains));
    findings.push_back(std::move(finding));
  }
  if (auto finding = FindModelOfNoOptimizer(e)) findings.push_back(std::move(*finding));
  std::erase_if(findings, [](const Finding& f) { return f.severity == Severity::kInfo; });
  return findings;
}

}  // namespace plimsoll

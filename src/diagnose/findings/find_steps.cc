// Growth and peaks that the steps explain: the first step's state, the longest batch, validation.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "answer/severity.h"
#include "base/median.h"
#include "diagnose/attribution/holders.h"
#include "diagnose/findings/findings.h"

namespace plimsoll {
namespace {

/// A step is out of line from here on; batches of one size differ by less than a thousandth.
constexpr double kLongBatch = 1.15;
/// Validation must exceed training by this much, and rise by this share of the peak, to be a cause.
constexpr double kSpike = 1.03;
constexpr double kLeastRise = 0.1;

}  // namespace

std::vector<Finding> FindWarmUp(const Evidence& e) {
  const Phases& p = e.trace.phases;
  if (p.steps < 2) return {};
  Bytes state = 0;
  Bytes later = 0;
  const auto next = std::find_if(p.backwards.begin(), p.backwards.end(),
                                 [](const Backward& b) { return b.step == 1; });
  const Position second = next == p.backwards.end() ? p.end : next->start;
  for (AllocationIndex a = 0; a < p.ledger.allocations.size(); ++a) {
    const Allocation& x = p.at(a);
    if (e.trace.attribution.category[a] != Category::kOptimizerState || x.made == kBefore) continue;
    // An optimizer that makes its state anew each step has none that was made in the first.
    if (p.Released(x) != kNotYet && p.Outlived(x) < 2) continue;
    (x.made < second ? state : later) += x.block;
  }
  if (double(state) < 0.01 * double(p.ledger.peak_allocated)) return {};
  // One that goes on to make state (L-BFGS keeps its last steps) is not done after the first.
  if (double(later) > 0.1 * double(state)) return {};
  Finding finding{.id = FindingId::kWarmUp,
                  .severity = Severity::kInfo,
                  .rank = {},
                  .title = {},
                  .evidence = {},
                  .remedies = {}};
  finding.title = fmt::format("the optimizer's state, {}, is made in the first step: normal",
                              FormatBytes(state));
  finding.evidence.push_back(fmt::format("{} made in the first step, {} after it",
                                         FormatBytes(state), FormatBytes(later)));
  return {finding};
}

std::vector<Finding> FindLongestBatch(const Evidence& e) {
  const std::vector<StepReport>& steps = e.trace.sweep.steps;
  const bool cut = e.trace.phases.ledger.before > 0;  // the first step may be missing its beginning
  std::vector<Bytes> whole;
  const auto complete = static_cast<std::size_t>(e.trace.phases.complete_steps);
  for (std::size_t i = cut ? 1 : 0; i < steps.size() && i < complete; ++i) {
    if (steps[i].activations > 0) whole.push_back(steps[i].activations);
  }
  // Attempts that ran out and were repeated with less are no batches of different length.
  const bool retried = std::any_of(e.trace.phases.oom_ends.begin(), e.trace.phases.oom_ends.end(),
                                   [](OomEnd end) { return end == OomEnd::kCaught; });
  if (whole.size() < 3 || retried) return {};
  const Bytes median = UpperMedian(whole);
  const Bytes most = *std::max_element(whole.begin(), whole.end());
  Finding finding{
      .id = FindingId::kLongestBatch, .rank = {}, .title = {}, .evidence = {}, .remedies = {}};
  const auto now = e.account.by_category[static_cast<std::size_t>(Category::kActivations)];
  const auto judge = [&](Bytes activations) {
    finding.explains = std::max<Bytes>(0, activations - median);
    finding.severity = LeastLow(SeverityOfShare(e.ShareOf(finding.explains)));
  };
  const bool in_training =
      e.trace.phases.fatal &&
      e.trace.phases.IsTrainingCall(
          e.trace.phases.timeline.events[static_cast<std::size_t>(*e.trace.phases.fatal)].stack);
  if (in_training && double(now) > kLongBatch * double(median) && now >= most) {
    judge(now);
    finding.event = e.instant;
    finding.title = fmt::format(
        "this step had {} of activations when it ran out; the median step before it had {}",
        FormatBytes(now), FormatBytes(median));
    finding.evidence.push_back(fmt::format("{} whole steps: {} at the median, {} at most",
                                           whole.size(), FormatBytes(median), FormatBytes(most)));
  } else if (double(most) > kLongBatch * double(median)) {
    std::size_t longest = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (steps[i].activations == most) longest = i;
    }
    const StepReport& step = steps[longest];
    const bool sets_peak = e.instant >= step.first_event && e.instant <= step.last_event;
    judge(most);
    if (!sets_peak) finding.severity = Severity::kInfo;
    finding.event = sets_peak ? e.instant : step.first_event;
    finding.title = fmt::format("step {} has {} of activations, the median step {}", longest + 1,
                                FormatBytes(most), FormatBytes(median));
    finding.evidence.push_back(sets_peak ? "the peak lies in that step"
                                         : "the peak lies elsewhere");
    // Where another step sets the peak, a shorter one here would not lower it.
    if (!sets_peak) return {finding};
  } else {
    return {};
  }
  finding.remedies.push_back(
      {.change = "cap the batch by its number of tokens or pixels, or sort by length, so that no "
                 "step exceeds the median",
       .saves = finding.explains,
       .costs = "",
       .basis = Basis::kRecorded,
       .lever = Lever::kSmallerBatch});
  return {finding};
}

namespace {

/// It ran out after a step, in a call of the model from a line that training does not come through.
std::optional<Finding> FatalBetweenSteps(const Evidence& e) {
  const Phases& p = e.trace.phases;
  if (!p.fatal || p.backwards.empty() || *p.fatal <= p.last_optimizer_end) return std::nullopt;
  const StackId stack = p.timeline.events[static_cast<std::size_t>(*p.fatal)].stack;
  if (p.IsTrainingCall(stack) || p.GapOf(*p.fatal) < p.backwards.size()) return std::nullopt;
  if ((p.stacks.of(stack).signs & (kSignLoad | kSignSave)) != 0) return std::nullopt;
  Finding finding{.id = FindingId::kEvalSpike};
  finding.event = e.instant;
  finding.title = fmt::format("it ran out between the training steps (validation?), at {}",
                              OwnLine(p, e.trace.attribution, stack));
  const Position from = std::max<Position>(p.last_optimizer_end, 0);
  finding.explains = std::max<Bytes>(
      0, e.account.allocated - e.trace.sweep.allocated[static_cast<std::size_t>(from)]);
  finding.severity = LeastLow(SeverityOfShare(e.ShareOf(finding.explains)));
  finding.evidence.push_back(
      fmt::format("after step {}: {} when it ran out, {} when the step was over", p.steps,
                  FormatBytes(e.account.allocated),
                  FormatBytes(e.trace.sweep.allocated[static_cast<std::size_t>(from)])));
  finding.evidence.push_back("the training steps call the model from other lines");
  finding.remedies.push_back(
      {.change = "validate under torch.no_grad(), with a smaller batch or in pieces",
       .saves = finding.explains,
       .costs = "more validation batches",
       .basis = Basis::kRecorded,
       .code = {"with torch.no_grad():", "    loss = criterion(model(x), y).item()"},
       .at_most = true});
  return finding;
}

}  // namespace

std::vector<Finding> FindEvalSpike(const Evidence& e) {
  const Phases& p = e.trace.phases;
  if (const auto fatal = FatalBetweenSteps(e)) return {*fatal};
  if (p.backwards.size() < 2) return {};
  // The first step lacks the optimizer's state, so it is no measure of training.
  Bytes training = 0;
  for (std::size_t k = 0; k < p.backwards.size(); ++k) {
    const Backward& b = p.backwards[k];
    if (k == 0) continue;
    training = std::max(training, e.trace.sweep.Highest(b.forward_start.value_or(b.start), b.end));
  }
  Bytes highest = 0;
  Bytes rise = 0;
  std::size_t after = 0;
  Position first = 0;
  Position last = 0;
  for (std::size_t k = 1; k <= p.backwards.size(); ++k) {
    const bool tail = k == p.backwards.size();
    if (tail && p.fatal) continue;
    const Position from = (tail ? p.last_optimizer_end : p.backwards[k].optimizer_end) + 1;
    const Position until =
        tail ? p.end - 1 : p.backwards[k].forward_start.value_or(p.backwards[k].start) - 1;
    if (from > until || from < 0 || from >= p.end) continue;
    const Bytes top = e.trace.sweep.Highest(from, until);
    if (top <= highest) continue;
    highest = top;
    rise = top - e.trace.sweep.allocated[static_cast<std::size_t>(from)];
    after = static_cast<std::size_t>(p.backwards[k - 1].step) + 1;
    first = from;
    last = until;
  }
  if (double(highest) <= kSpike * double(training) ||
      double(rise) <= kLeastRise * double(p.ledger.peak_allocated)) {
    return {};
  }
  StackId largest_stack;
  Bytes largest = 0;
  for (const Allocation& a : p.Between(first, last)) {
    if (a.block <= largest) continue;
    largest = a.block;
    largest_stack = a.stack;
  }
  const std::string where = OwnLine(p, e.trace.attribution, largest_stack);
  Finding finding{.id = FindingId::kEvalSpike, .explains = highest - training};
  finding.severity = LeastLow(SeverityOfShare(e.ShareOf(finding.explains)));
  finding.event = first;
  finding.title = fmt::format("work between the steps (validation?) needs {}, training {}",
                              FormatBytes(highest), FormatBytes(training));
  finding.evidence.push_back(
      fmt::format("after step {}, events {} to {}: {} above what it started "
                  "from{}",
                  after, first, last, FormatBytes(rise), where.empty() ? "" : ", in " + where));
  finding.remedies.push_back({.change = "validate with a smaller batch, or in pieces",
                              .saves = highest - training,
                              .costs = "more validation batches",
                              .basis = Basis::kRecorded,
                              .code = {"with torch.no_grad():", "    outputs = model(x)"}});
  return {finding};
}

}  // namespace plimsoll

#include <fmt/format.h>

#include <algorithm>

#include "allocator/settings/rules.h"
#include "answer/severity.h"
#include "diagnose/findings/allocator_study.h"
#include "diagnose/findings/findings.h"
#include "diagnose/findings/remedies.h"

namespace plimsoll {
namespace {

struct Refusal {
  Position at = 0;
  Bytes requested = 0;
  Bytes segment = 0;
  /// As the driver reported; profiler traces do not say.
  std::optional<Bytes> device_free = {};
  OomEnd end = OomEnd::kFatal;
};

std::vector<Refusal> Refusals(const Phases& p) {
  const AllocatorRules rules = AllocatorRules::From(p.timeline.settings);
  std::vector<Refusal> list;
  for (std::size_t i = 0; i < p.ooms.size(); ++i) {
    const Event& e = p.timeline.events[static_cast<std::size_t>(p.ooms[i])];
    list.push_back({.at = p.ooms[i],
                    .requested = e.size,
                    .segment = rules.SegmentFor(e.size),
                    .end = p.oom_ends[i]});
    if (p.ledger.has_segments)
      list.back().device_free = static_cast<Bytes>(std::min(e.address, Address{1} << 50));
  }
  return list;
}

/// The driver had room for the segment and the allocator still gave up: a limit was set.
bool ByLimit(const Refusal& r) { return r.device_free && *r.device_free >= r.segment; }

std::string FreeText(const Refusal& r) {
  return r.device_free ? FormatBytes(*r.device_free) + " free" : "an unknown amount free";
}

std::string WhereOf(const Phases& p, Position at) {
  return p.stacks.WhereOf(p.timeline.events[static_cast<std::size_t>(at)].stack);
}

/// In a backward, which has no stack of Python: the line whose tensor has the size of what was
/// asked for, since a gradient is as large as what it is the gradient of.
std::string ForwardLine(const Evidence& e, const Refusal& r) {
  const Phases& p = e.trace.phases;
  for (auto x = p.ledger.allocations.rbegin(); x != p.ledger.allocations.rend(); ++x) {
    if (x->made >= r.at || !x->HeldAt(r.at) || x->requested != r.requested) continue;
    const AllocationIndex a = p.IndexOf(*x);
    if (e.trace.attribution.category[a] != Category::kActivations) continue;
    return p.stacks.WhereOf(x->stack);
  }
  return "";
}

/// Whether only the forward's line can name it.
bool NamedByForward(const Phases& p, const Refusal& r) {
  const StackId stack = p.timeline.events[static_cast<std::size_t>(r.at)].stack;
  return r.end == OomEnd::kFatal && p.FailedInBackward() && !p.stacks.of(stack).user_frame.valid();
}

std::string PlaceOfRefusal(const Evidence& e, const Refusal& r) {
  return NamedByForward(e.trace.phases, r) ? ForwardLine(e, r) : WhereOf(e.trace.phases, r.at);
}

/// Whether the failing step needed more than any that came to its end: then the record does not
/// show what the rest of it needs.
bool LargerThanCompleteSteps(const Evidence& e, const Refusal& r) {
  Bytes highest = 0;
  const auto complete = static_cast<std::size_t>(e.trace.phases.complete_steps);
  for (std::size_t i = 0; i < complete && i < e.trace.sweep.steps.size(); ++i) {
    highest = std::max(highest, e.trace.sweep.steps[i].peak_allocated);
  }
  return e.account.allocated + r.requested > highest;
}

std::string In(const std::string& where) { return where.empty() ? "" : " at " + where; }

bool PiecesWouldDo(const Account& account, const Refusal& r) {
  return account.fragmented + account.cached >= r.requested;
}

Severity SeverityOfPieces(const Evidence& e) {
  return LeastLow(SeverityOfShare(e.ShareOf(e.account.fragmented + e.account.cached)));
}

/// Free pieces decide only where they are enough for the request and a good part of what is held.
bool PiecesDecide(const Evidence& e, const Refusal& r) {
  return PiecesWouldDo(e.account, r) && SeverityOfPieces(e) == Severity::kHigh;
}

/// The process came to the end of the budget that its user gave it: to it, the card is full.
bool ByBudget(const Evidence& e, const Refusal& r) {
  return e.trace.timeline.settings.budget && ByLimit(r);
}

/// Where the limit must lie: above all that was ever held, and below what this request wanted; all
/// refusals together, where they were studied, tell more.
std::string LimitText(const Evidence& e, const Refusal& r,
                      const std::optional<AllocatorStudy>& study) {
  if (study && study->limit) {
    return fmt::format("between {} and {}", FormatBytes(study->limit->least),
                       FormatBytes(study->limit->most));
  }
  const Bytes least = std::max(e.account.reserved, e.trace.ledger.peak_reserved);
  const Bytes most = e.account.reserved + r.segment;
  if (most <= least) return fmt::format("at {} or more", FormatBytes(least));
  return fmt::format("between {} and {}", FormatBytes(least), FormatBytes(most));
}

Remedy RaiseLimit() {
  return {.change = "raise or remove the limit, if it is not meant",
          .remark = "it may also stand in PYTORCH_CUDA_ALLOC_CONF (per_process_memory_fraction)",
          .basis = Basis::kRule,
          .lever = Lever::kMemoryLimit,
          .code = {"torch.cuda.set_per_process_memory_fraction(1.0)"}};
}

Finding FullFinding(const Evidence& e, const Refusal& r,
                    const std::optional<AllocatorStudy>& study) {
  const Account& account = e.account;
  Finding finding;
  finding.severity = Severity::kHigh;
  finding.event = r.at;
  finding.evidence.push_back(fmt::format(
      "event {}: {} were requested{}; for that the allocator needs {} from the driver", r.at,
      FormatBytes(r.requested), In(WhereOf(e.trace.phases, r.at)), FormatBytes(r.segment)));
  const bool budget = ByBudget(e, r);
  finding.evidence.push_back(
      fmt::format("PyTorch held {}, of which {} in tensors; {}", FormatBytes(account.reserved),
                  FormatBytes(account.allocated),
                  budget ? FormatBytes(e.Whole() - account.reserved) + " of the budget were left"
                         : "the driver reported " + FreeText(r)));
  if (study && study->at_failure) finding.evidence.push_back(WhyNoBlock(*study));
  if (budget) {
    finding.id = FindingId::kCapacity;
    finding.title = fmt::format("the budget of {} is full: {} were left, and {} were needed",
                                FormatBytes(e.Whole()), FormatBytes(e.Whole() - account.reserved),
                                FormatBytes(r.segment));
  } else if (ByLimit(r)) {
    finding.id = FindingId::kLimit;
    finding.title = fmt::format("a limit on this process stops it {}, although the device has {}",
                                LimitText(e, r, study), FreeText(r));
    finding.remedies.push_back(RaiseLimit());
  } else {
    finding.id = FindingId::kCapacity;
    finding.title = fmt::format("the device is full, with {}", FreeText(r));
  }
  // Of work between the steps, what lowers a training step's peak does not help.
  const StackId stack = e.trace.timeline.events[static_cast<std::size_t>(r.at)].stack;
  if (!e.trace.phases.IsTrainingCall(stack)) return finding;
  for (Remedy& remedy : MemoryRemedies(e)) finding.remedies.push_back(std::move(remedy));
  return finding;
}

Finding PiecesFinding(const Evidence& e, const Refusal& r,
                      const std::optional<AllocatorStudy>& study) {
  const Account& account = e.account;
  Finding finding;
  finding.id = FindingId::kFragmentation;
  finding.severity = SeverityOfPieces(e);
  finding.event = r.at;
  finding.title =
      fmt::format("{} are free inside PyTorch, but in pieces too small for {}",
                  FormatBytes(account.fragmented + account.cached), FormatBytes(r.requested));
  finding.evidence.push_back(
      fmt::format("the largest free piece is {}", FormatBytes(account.largest_free)));
  if (account.largest_free >= r.requested) {
    finding.title = fmt::format("{} are free in one piece, but held for another stream or pool",
                                FormatBytes(account.largest_free));
  }
  if (study) finding.remedies = SettingRemedies(*study, !LargerThanCompleteSteps(e, r));
  return finding;
}

/// Where memory is simply short, only settings that help are worth a word.
void AddRescues(const AllocatorStudy& study, bool complete, std::vector<Remedy>& remedies) {
  for (Remedy& remedy : SettingRemedies(study, complete)) {
    if (!remedy.avoid) remedies.push_back(std::move(remedy));
  }
}

Finding FellBackFinding(const Evidence& e, const std::vector<Refusal>& refused) {
  const auto largest = std::max_element(
      refused.begin(), refused.end(),
      [](const Refusal& a, const Refusal& b) { return a.requested < b.requested; });
  Finding finding{
      .id = FindingId::kWorkspaceRefused, .severity = Severity::kLow, .event = largest->at};
  finding.title = fmt::format("{} request{} refused and the job went on: slower, but no failure",
                              refused.size(), refused.size() == 1 ? " was" : "s were");
  finding.evidence.push_back(fmt::format(
      "the largest asked for {}{} (event {}); the next "
      "allocation came from the same work",
      FormatBytes(largest->requested), In(WhereOf(e.trace.phases, largest->at)), largest->at));
  finding.evidence.push_back(
      "cuDNN asks for a workspace, is refused, and takes a slower algorithm that needs less; less "
      "memory elsewhere would make the job faster");
  return finding;
}

Finding CaughtFinding(const Evidence& e, const std::vector<Refusal>& caught) {
  Finding finding;
  const bool limit = ByLimit(caught.back()) && !ByBudget(e, caught.back());
  finding.id = limit ? FindingId::kLimit : FindingId::kCapacity;
  finding.severity = Severity::kMedium;
  finding.event = caught.back().at;
  finding.title = fmt::format("it ran out of memory {} time{}, caught the error and went on",
                              caught.size(), caught.size() == 1 ? "" : "s");
  constexpr std::size_t kShown = 3;
  for (std::size_t i = 0; i < caught.size() && i < kShown; ++i) {
    finding.evidence.push_back(
        fmt::format("event {}: {} refused {}", caught[i].at, FormatBytes(caught[i].requested),
                    ByBudget(e, caught[i]) ? "at the end of the budget"
                                           : "with " + FreeText(caught[i]) + " on the device"));
  }
  if (caught.size() > kShown) {
    finding.evidence.push_back(fmt::format("and {} more", caught.size() - kShown));
  }
  return finding;
}

}  // namespace

std::vector<Finding> FindOutOfMemory(const Evidence& e) {
  std::vector<Finding> findings;
  std::vector<Refusal> fell_back;
  std::vector<Refusal> caught;
  for (const Refusal& r : Refusals(e.trace.phases)) {
    if (r.end == OomEnd::kFatal) {
      const auto study = StudyAllocator(e.trace);
      findings.push_back(FullFinding(e, r, study));
      if (PiecesWouldDo(e.account, r)) {
        findings.push_back(PiecesFinding(e, r, study));
      } else if (study) {
        AddRescues(*study, !LargerThanCompleteSteps(e, r), findings.back().remedies);
      }
    }
    if (r.end == OomEnd::kFellBack) fell_back.push_back(r);
    if (r.end == OomEnd::kCaught) caught.push_back(r);
  }
  if (!caught.empty()) findings.push_back(CaughtFinding(e, caught));
  if (!fell_back.empty()) findings.push_back(FellBackFinding(e, fell_back));
  return findings;
}

std::vector<OomReport> OomRows(const Evidence& e) {
  std::vector<OomReport> rows;
  for (const Refusal& r : Refusals(e.trace.phases)) {
    const bool fatal = r.end == OomEnd::kFatal;
    const bool pieces = fatal && PiecesDecide(e, r);
    const bool limit = ByLimit(r) && !ByBudget(e, r);
    rows.push_back({.event = r.at,
                    .requested = r.requested,
                    .fatal = fatal,
                    .caught = r.end == OomEnd::kCaught,
                    .why = pieces  ? OomCause::kFragmentation
                           : limit ? OomCause::kLimit
                                   : OomCause::kCapacity,
                    .where = PlaceOfRefusal(e, r),
                    .in_backward = NamedByForward(e.trace.phases, r),
                    .device_free = r.device_free});
  }
  return rows;
}

}  // namespace plimsoll

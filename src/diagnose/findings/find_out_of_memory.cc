#include <fmt/format.h>

#include <algorithm>

#include "allocator/rules.h"
#include "diagnose/findings/allocator_study.h"
#include "diagnose/findings/findings.h"

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

std::string In(const std::string& where) { return where.empty() ? "" : " in " + where; }

/// Free pieces decide only where they are enough for the request and a good part of what is held.
constexpr double kMuchInPieces = 0.2;

bool PiecesWouldDo(const Account& account, const Refusal& r) {
  return account.fragmented + account.cached >= r.requested;
}

bool PiecesDecide(const Account& account, const Refusal& r) {
  const Bytes free = account.fragmented + account.cached;
  return PiecesWouldDo(account, r) && double(free) >= kMuchInPieces * double(account.reserved);
}

/// What lies in the largest categories can be had back by the usual means.
void AddRemedies(const Account& account, std::vector<Remedy>& remedies) {
  const auto held = [&](Category c) { return account.by_category[static_cast<std::size_t>(c)]; };
  const auto large = [&](Category c) { return held(c) * 3 >= account.allocated; };
  if (large(Category::kActivations)) {
    remedies.push_back({.change = "half the batch, two accumulation steps",
                        .saves = held(Category::kActivations) / 2,
                        .costs = "about the same time; batch norm sees smaller batches",
                        .basis = Basis::kEstimated});
    remedies.push_back({.change = "activation checkpointing (torch.utils.checkpoint)",
                        .saves = std::nullopt,
                        .costs = "about one more forward a step",
                        .basis = Basis::kRule});
  }
  if (large(Category::kOptimizerState)) {
    remedies.push_back({.change = "shard the optimizer's state over N GPUs (FSDP, ZeRO): saves "
                                  "(N-1)/N of it",
                        .saves = held(Category::kOptimizerState) / 2,
                        .costs = "communication; the figure is for two GPUs",
                        .basis = Basis::kEstimated});
  }
}

Finding FullFinding(const Evidence& e, const Refusal& r,
                    const std::optional<AllocatorStudy>& study) {
  const Account& account = e.account;
  Finding finding;
  finding.severity = Severity::kHigh;
  finding.evidence.push_back(fmt::format(
      "event {}: {} were asked for{}, for which the allocator wants {} from the driver", r.at,
      FormatBytes(r.requested), In(WhereOf(e.trace.phases, r.at)), FormatBytes(r.segment)));
  finding.evidence.push_back(
      fmt::format("PyTorch held {}, of which {} in tensors; the driver "
                  "reported {}",
                  FormatBytes(account.reserved), FormatBytes(account.allocated), FreeText(r)));
  if (study && study->at_failure) finding.evidence.push_back(WhyNoBlock(*study));
  if (ByLimit(r)) {
    finding.id = FindingId::kLimit;
    finding.title = fmt::format("a limit stops PyTorch at {}, although the device has {}",
                                FormatBytes(account.reserved), FreeText(r));
    finding.evidence.push_back(
        fmt::format("the limit lies between {} (held) and {} (held and asked for)",
                    FormatBytes(account.reserved), FormatBytes(account.reserved + r.segment)));
    finding.remedies.push_back(
        {.change = "raise or drop set_per_process_memory_fraction (or per_process_memory_fraction "
                   "in PYTORCH_CUDA_ALLOC_CONF)",
         .saves = std::nullopt,
         .costs = "",
         .basis = Basis::kRule});
  } else {
    finding.id = FindingId::kCapacity;
    finding.title = fmt::format("the device is full, with {}", FreeText(r));
  }
  AddRemedies(account, finding.remedies);
  return finding;
}

Finding PiecesFinding(const Evidence& e, const Refusal& r,
                      const std::optional<AllocatorStudy>& study) {
  const Account& account = e.account;
  Finding finding;
  finding.id = FindingId::kFragmentation;
  finding.severity = PiecesDecide(account, r) ? Severity::kHigh : Severity::kMedium;
  finding.title =
      fmt::format("{} are free inside PyTorch, but in pieces too small for {}",
                  FormatBytes(account.fragmented + account.cached), FormatBytes(r.requested));
  finding.evidence.push_back(
      fmt::format("the largest free piece is {}", FormatBytes(account.largest_free)));
  if (account.largest_free >= r.requested) {
    finding.title = fmt::format("{} are free in one piece, but held for another stream or pool",
                                FormatBytes(account.largest_free));
  }
  if (study) finding.remedies = SettingRemedies(*study);
  return finding;
}

/// Where memory is simply short, only settings that help are worth a word.
void AddRescues(const AllocatorStudy& study, std::vector<Remedy>& remedies) {
  for (Remedy& remedy : SettingRemedies(study)) {
    if (!remedy.avoid) remedies.push_back(std::move(remedy));
  }
}

Finding FellBackFinding(const Evidence& e, const std::vector<Refusal>& refused) {
  const auto largest = std::max_element(
      refused.begin(), refused.end(),
      [](const Refusal& a, const Refusal& b) { return a.requested < b.requested; });
  Finding finding{.id = FindingId::kWorkspaceRefused,
                  .severity = Severity::kLow,
                  .rank = {},
                  .title = {},
                  .evidence = {},
                  .remedies = {}};
  finding.title = fmt::format("{} request{} refused and survived: lost speed, not a failure",
                              refused.size(), refused.size() == 1 ? " was" : "s were");
  finding.evidence.push_back(fmt::format(
      "the largest asked for {}{} (event {}); the next "
      "allocation came from the same work",
      FormatBytes(largest->requested), In(WhereOf(e.trace.phases, largest->at)), largest->at));
  finding.evidence.push_back(
      "cuDNN asks for a workspace, is refused, and takes a slower algorithm that needs less");
  return finding;
}

Finding CaughtFinding(const std::vector<Refusal>& caught) {
  Finding finding;
  finding.id = ByLimit(caught.back()) ? FindingId::kLimit : FindingId::kCapacity;
  finding.severity = Severity::kMedium;
  finding.title =
      fmt::format("ran out of memory {} time{}; the program released memory and went on",
                  caught.size(), caught.size() == 1 ? "" : "s");
  for (std::size_t i = 0; i < caught.size() && i < 3; ++i) {
    finding.evidence.push_back(fmt::format("event {}: {} refused with {} on the device",
                                           caught[i].at, FormatBytes(caught[i].requested),
                                           FreeText(caught[i])));
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
        AddRescues(*study, findings.back().remedies);
      }
    }
    if (r.end == OomEnd::kFellBack) fell_back.push_back(r);
    if (r.end == OomEnd::kCaught) caught.push_back(r);
  }
  if (!caught.empty()) findings.push_back(CaughtFinding(caught));
  if (!fell_back.empty()) findings.push_back(FellBackFinding(e, fell_back));
  return findings;
}

std::vector<OomReport> OomRows(const Evidence& e) {
  std::vector<OomReport> rows;
  for (const Refusal& r : Refusals(e.trace.phases)) {
    const bool fatal = r.end == OomEnd::kFatal;
    const bool pieces = fatal && PiecesDecide(e.account, r);
    rows.push_back({.event = r.at,
                    .requested = r.requested,
                    .fatal = fatal,
                    .caught = r.end == OomEnd::kCaught,
                    .why = pieces       ? OomCause::kFragmentation
                           : ByLimit(r) ? OomCause::kLimit
                                        : OomCause::kCapacity,
                    .where = WhereOf(e.trace.phases, r.at),
                    .device_free = r.device_free});
  }
  return rows;
}

}  // namespace plimsoll

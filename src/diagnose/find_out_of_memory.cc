#include <fmt/format.h>

#include <algorithm>

#include "allocator/rules.h"
#include "diagnose/findings.h"

namespace plimsoll {
namespace {

/// What the allocator asks the driver for when a request of this (rounded) size finds no block.
Bytes SegmentFor(Bytes rounded, const AllocatorRules& rules) {
  if (rounded <= kSmallRequest) return kSmallSegment;
  if (rounded < 10 * kMiB) return rules.large_segment;
  return (rounded + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
}

struct Refusal {
  Position at = 0;
  Bytes requested = 0;
  Bytes segment = 0;
  Bytes device_free = 0;
  OomEnd end = OomEnd::kFatal;
};

std::vector<Refusal> Refusals(const Phases& p) {
  const AllocatorRules rules = AllocatorRules::From(p.timeline.settings);
  std::vector<Refusal> list;
  for (std::size_t i = 0; i < p.ooms.size(); ++i) {
    const Event& e = p.timeline.events[static_cast<std::size_t>(p.ooms[i])];
    list.push_back({.at = p.ooms[i],
                    .requested = e.size,
                    .segment = SegmentFor(e.size, rules),
                    .device_free = static_cast<Bytes>(e.address),
                    .end = p.oom_ends[i]});
  }
  return list;
}

/// The driver had room for the segment and the allocator still gave up: a limit was set.
bool ByLimit(const Refusal& r) { return r.device_free >= r.segment; }

std::string WhereOf(const Phases& p, Position at) {
  return p.stacks.WhereOf(p.timeline.events[static_cast<std::size_t>(at)].stack);
}

std::string In(const std::string& where) { return where.empty() ? "" : " in " + where; }

Finding FatalFinding(const Evidence& e, const Refusal& r) {
  const Account& account = e.account;
  const Bytes stuck = account.fragmented + account.cached;
  Finding finding;
  finding.severity = Severity::kHigh;
  const std::string where = WhereOf(e.phases, r.at);
  finding.evidence.push_back(fmt::format("event {}: {} were asked for{}, which takes {} from the "
                                         "driver",
                                         r.at, FormatBytes(r.requested), In(where),
                                         FormatBytes(r.segment)));
  finding.evidence.push_back(
      fmt::format("PyTorch held {}, of which {} in tensors and {} free in pieces; the largest free "
                  "piece is {}",
                  FormatBytes(account.reserved), FormatBytes(account.allocated),
                  FormatBytes(stuck), FormatBytes(account.largest_free)));
  finding.evidence.push_back(fmt::format("the driver reported {} free",
                                         FormatBytes(r.device_free)));
  if (stuck >= r.requested) {
    finding.id = "fragmentation";
    finding.title = fmt::format("{} were free inside PyTorch, but in pieces too small for {}",
                                FormatBytes(stuck), FormatBytes(r.requested));
    finding.remedies.push_back(
        {.change = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
         .saves = account.fragmented,
         .costs = "at most what is stuck in segments in use; `plimsoll replay` will tell exactly",
         .basis = "estimated"});
  } else if (ByLimit(r)) {
    finding.id = "limit";
    finding.title =
        fmt::format("a limit stopped PyTorch at {} although the device had {} free",
                    FormatBytes(account.reserved), FormatBytes(r.device_free));
    finding.evidence.push_back(
        fmt::format("the limit lies between {} (held) and {} (held and asked for)",
                    FormatBytes(account.reserved), FormatBytes(account.reserved + r.segment)));
    finding.remedies.push_back(
        {.change = "raise or drop set_per_process_memory_fraction (or per_process_memory_fraction "
                   "in PYTORCH_CUDA_ALLOC_CONF)",
         .saves = std::nullopt,
         .costs = "",
         .basis = "recorded"});
  } else {
    finding.id = "capacity";
    finding.title = fmt::format("the device is full: {} asked for, {} free",
                                FormatBytes(r.requested), FormatBytes(r.device_free));
  }
  return finding;
}

Finding FellBackFinding(const Evidence& e, const std::vector<Refusal>& refused) {
  const auto largest =
      std::max_element(refused.begin(), refused.end(), [](const Refusal& a, const Refusal& b) {
        return a.requested < b.requested;
      });
  Finding finding{.id = "workspace_refused", .severity = Severity::kLow, .rank = {}, .title = {},
                  .evidence = {}, .remedies = {}};
  finding.title = fmt::format("{} request{} refused and survived: lost speed, not a failure",
                              refused.size(), refused.size() == 1 ? " was" : "s were");
  finding.evidence.push_back(fmt::format("the largest asked for {}{} (event {}); the next "
                                         "allocation came from the same work",
                                         FormatBytes(largest->requested),
                                         In(WhereOf(e.phases, largest->at)), largest->at));
  finding.evidence.push_back(
      "cuDNN asks for a workspace, is refused, and takes a slower algorithm that needs less");
  return finding;
}

Finding CaughtFinding(const std::vector<Refusal>& caught) {
  Finding finding;
  finding.id = ByLimit(caught.back()) ? "limit" : "capacity";
  finding.severity = Severity::kMedium;
  finding.title = fmt::format("ran out of memory {} time{}; the program released memory and went on",
                              caught.size(), caught.size() == 1 ? "" : "s");
  for (std::size_t i = 0; i < caught.size() && i < 3; ++i) {
    finding.evidence.push_back(fmt::format("event {}: {} refused with {} free on the device",
                                           caught[i].at, FormatBytes(caught[i].requested),
                                           FormatBytes(caught[i].device_free)));
  }
  return finding;
}

}  // namespace

std::vector<Finding> FindOutOfMemory(const Evidence& e) {
  std::vector<Finding> findings;
  std::vector<Refusal> fell_back;
  std::vector<Refusal> caught;
  for (const Refusal& r : Refusals(e.phases)) {
    if (r.end == OomEnd::kFatal) findings.push_back(FatalFinding(e, r));
    if (r.end == OomEnd::kFellBack) fell_back.push_back(r);
    if (r.end == OomEnd::kCaught) caught.push_back(r);
  }
  if (!caught.empty()) findings.push_back(CaughtFinding(caught));
  if (!fell_back.empty()) findings.push_back(FellBackFinding(e, fell_back));
  return findings;
}

std::vector<OomReport> OomRows(const Evidence& e) {
  std::vector<OomReport> rows;
  for (const Refusal& r : Refusals(e.phases)) {
    const bool fatal = r.end == OomEnd::kFatal;
    const bool pieces = fatal && e.account.fragmented + e.account.cached >= r.requested;
    rows.push_back({.event = r.at,
                    .requested = r.requested,
                    .fatal = fatal,
                    .why = pieces ? "fragmentation" : ByLimit(r) ? "limit" : "capacity",
                    .where = WhereOf(e.phases, r.at),
                    .device_free = r.device_free});
  }
  return rows;
}

}  // namespace plimsoll

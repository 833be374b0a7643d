#include "diagnose/explain.h"

#include <fmt/format.h>

#include <algorithm>

#include "diagnose/account.h"
#include "diagnose/attribution.h"
#include "diagnose/findings.h"
#include "diagnose/holders.h"
#include "diagnose/messages.h"
#include "diagnose/phases.h"
#include "diagnose/ranks.h"
#include "diagnose/sweep.h"
#include "diagnose/verdict.h"

namespace plimsoll {
namespace {

Instant ChooseInstant(const Phases& p, const ExplainOptions& options, Position& at) {
  Instant instant;
  if (options.at_event) {
    at = static_cast<Position>(*options.at_event);
    instant.kind = "event";
  } else if (p.fatal) {
    at = *p.fatal;
    instant.kind = "oom";
  } else {
    at = p.ledger.peak_allocated_at;
    instant.kind = "peak";
  }
  if (at >= 0) {
    instant.event = at;
    const TimeUs time = p.timeline.events[static_cast<std::size_t>(at)].time_us;
    if (time != 0) instant.time_us = time;
  }
  return instant;
}

void KeepLargest(std::vector<Holder>& holders, std::size_t most) {
  if (holders.size() <= most) return;
  Holder rest{.where = fmt::format("{} smaller holders", holders.size() - most),
              .category = Category::kUnattributed,
              .bytes = 0,
              .count = 0,
              .module = {},
              .stack = {}};
  for (std::size_t i = most; i < holders.size(); ++i) {
    rest.bytes += holders[i].bytes;
    rest.count += holders[i].count;
  }
  holders.resize(most);
  holders.push_back(std::move(rest));
}

std::vector<std::string> NotesOn(const Recording& recording, const Phases& p) {
  std::vector<std::string> notes;
  const Ledger& ledger = p.ledger;
  if (ledger.before > 0 && !p.timeline.events.empty()) {
    notes.push_back(
        fmt::format("the record begins mid-run: {} block(s), {}, were there before its "
                    "first event; peaks before it are not known",
                    ledger.before, FormatBytes(ledger.initial_allocated)));
  }
  if (p.timeline.events.empty()) {
    notes.push_back(
        "the record has no events (history was not switched on): this is the state when "
        "it was made");
  } else if (!p.framed && recording.format.starts_with("PyTorch memory snapshot")) {
    notes.push_back(
        "the events carry no stacks: record with stacks=\"python\" to see source lines");
  }
  if (ledger.contradictions > 0) {
    notes.push_back(
        fmt::format("{} events contradict the ones before them", ledger.contradictions));
  }
  if (!ledger.has_segments) {
    notes.push_back(
        "this kind of record has no segments: what is cached cannot be told from what "
        "is fragmented");
  }
  if (p.timeline.host_reserved > 0) {
    notes.push_back(fmt::format("{} of pinned host memory are listed beside the device's",
                                FormatBytes(p.timeline.host_reserved)));
  }
  for (const auto& [what, count] : recording.skipped) {
    notes.push_back(fmt::format("skipped: {} {}", count, what));
  }
  return notes;
}

/// One device of one trace, from following its events to naming its causes.
Explanation ExplainTimeline(const Recording& recording, const Timeline& timeline,
                            const ExplainOptions& options) {
  // Which allocation each event belongs to, and how large its block was.
  const Ledger ledger = Follow(timeline);
  // Which thread and phase each allocation was made in; where the steps are.
  const StackAnalysis stacks(timeline);
  const Phases phases(timeline, ledger, stacks);
  // What each allocation is for, and what that adds up to over time.
  const Attribution attribution = Attribute(phases);
  Sweep sweep = SweepEvents(phases, attribution);
  // Where every byte is at the instant that matters, who holds it, and why.
  Position at = kBefore;
  RankReport rank;
  rank.instant = ChooseInstant(phases, options, at);
  const Account account = AccountAt(phases, attribution, at);
  const Evidence evidence{phases, attribution, sweep, account, at};

  rank.file = recording.file;
  rank.format = recording.format;
  rank.rank = RankFromName(recording.file);
  rank.device = timeline.device;
  rank.torch = timeline.torch;
  rank.events = static_cast<std::int64_t>(timeline.events.size());
  if (!timeline.events.empty()) rank.steps = phases.steps;
  rank.peak_allocated = ledger.peak_allocated;
  rank.peak_reserved = ledger.peak_reserved;
  for (const Totals& totals : timeline.totals) {
    if (!ledger.has_segments) rank.peak_reserved = std::max(*rank.peak_reserved, totals.reserved);
  }
  rank.peak_reserved = std::max(*rank.peak_reserved, account.reserved);
  rank.instant.allocated = account.allocated;
  rank.instant.reserved = account.reserved;
  rank.account = account.lines;
  rank.peaks = sweep.peaks;
  rank.holders = HoldersAt(phases, attribution, at);
  KeepLargest(rank.holders, options.most_holders);
  rank.ooms = OomRows(evidence);
  if (rank.instant.kind == "oom" && rank.ooms.back().device_free) {
    rank.account.push_back({.what = "free",
                            .bytes = *rank.ooms.back().device_free,
                            .confidence = Confidence::kHigh,
                            .because = "free on the device, says the driver"});
  }
  rank.phase = PhaseAt(phases, at);
  rank.notes = NotesOn(recording, phases);

  Explanation explanation;
  explanation.findings = FindAll(evidence);
  for (Finding& finding : explanation.findings) finding.rank = rank.rank;
  rank.step_table = std::move(sweep.steps);
  explanation.ranks.push_back(std::move(rank));
  explanation.verdict = TraceVerdict(explanation.ranks.front(), explanation.findings);
  return explanation;
}

}  // namespace

Result<Explanation> ExplainRecording(const Recording& recording, const ExplainOptions& options) {
  std::vector<Explanation> parts;
  std::int64_t most_events = 0;
  for (const Timeline& timeline : recording.timelines) {
    const auto events = static_cast<std::int64_t>(timeline.events.size());
    most_events = std::max(most_events, events);
    if (options.at_event && *options.at_event >= events) continue;
    parts.push_back(ExplainTimeline(recording, timeline, options));
  }
  if (options.at_event && parts.empty() && !recording.timelines.empty()) {
    return Error{.message = fmt::format("there is no event {}; it has {} events", *options.at_event,
                                        most_events),
                 .file = recording.file,
                 .hint = "they are counted from 0"};
  }
  if (!recording.messages.empty()) parts.push_back(ExplainMessages(recording));
  if (!recording.summaries.empty()) parts.push_back(ExplainSummaries(recording));
  if (recording.categories) parts.push_back(ExplainCategories(recording));
  if (parts.empty()) {
    return Error{.message = "nothing about memory was found in it", .file = recording.file};
  }
  return Join(std::move(parts));
}

}  // namespace plimsoll

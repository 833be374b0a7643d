#include "diagnose/explain.h"

#include <fmt/format.h>

#include <algorithm>

#include "answer/shares.h"
#include "diagnose/attribution/account.h"
#include "diagnose/attribution/holders.h"
#include "diagnose/attribution/mark_table.h"
#include "diagnose/attribution/pinned_table.h"
#include "diagnose/attribution/pool_table.h"
#include "diagnose/error_texts/messages.h"
#include "diagnose/findings/findings.h"
#include "diagnose/logged/log_study.h"
#include "diagnose/neighbours/presence.h"
#include "diagnose/phases/phase_at.h"
#include "diagnose/ranks.h"
#include "diagnose/script_of.h"
#include "diagnose/verdict.h"

namespace plimsoll {
namespace {

Instant ChooseInstant(const Phases& p, const ExplainOptions& options, Position& at) {
  Instant instant;
  if (options.at_event) {
    at = static_cast<Position>(*options.at_event);
    instant.kind = InstantKind::kEvent;
  } else if (p.fatal) {
    at = *p.fatal;
    instant.kind = InstantKind::kOutOfMemory;
  } else {
    at = p.ledger.peak_allocated_at;
    instant.kind = InstantKind::kPeak;
  }
  if (at >= 0) {
    instant.event = at;
    const TimeUs time = p.timeline.events[static_cast<std::size_t>(at)].time_us;
    if (time != 0) instant.time_us = time;
  }
  return instant;
}

std::string HowToGetStacks(const Phases& p) {
  const std::string cpp =
      "torch::cuda::_record_memory_history(\"all\", \"all\", \"all\") records them";
  if (p.stacks.IsCpp()) return "hardly any event carries a stack: " + cpp;
  return "the events carry no stacks: record with stacks=\"python\" to see source lines; in C++, " +
         cpp;
}

/// All kinds of events share one ring; the segments of a snapshot are whole all the same.
std::string OverflowNote(const Phases& p) {
  const RecordedSettings& settings = p.timeline.settings;
  const auto kept = static_cast<std::int64_t>(p.timeline.events.size());
  // What is there and was made by none of the events that are left had one of its own at least.
  const std::int64_t needed =
      kept + p.ledger.before + static_cast<std::int64_t>(p.ledger.initial_ranges.size());
  const std::string ring =
      settings.trace_max_entries
          ? fmt::format("the record's ring of {} events was full", *settings.trace_max_entries)
          : std::string("the record's ring of events was full");
  return fmt::format(
      "{}, and the oldest were overwritten: {} block(s), {}, were there before the first that is "
      "left, and peaks before it are not known; at least max_entries={} would have been needed",
      ring, p.ledger.before, FormatBytes(p.ledger.initial_allocated), needed);
}

void NoteMissingKinds(const MissingKinds& missing, std::vector<std::string>& notes) {
  const auto add = [&](bool told, std::string_view what, std::string_view follows) {
    if (!told) return;
    notes.push_back(fmt::format(
        "the record has no {} events although there must have been some (skip_actions of "
        "_record_memory_history leaves kinds out): {}",
        what, follows));
  };
  add(missing.allocs, "alloc", "what was made and released in between is not in the answer");
  add(missing.frees(), "free",
      "what is told to be held was made, and may have been released long before; peaks are upper "
      "bounds, and whether something leaks cannot be told");
  add(missing.completions && !missing.frees(), "free_completed",
      "a block is taken to be free when the program lets go of it, though another stream may "
      "still have used it");
  add(missing.releases && !missing.frees(), "free_requested",
      "a block is taken to be let go of when it becomes free");
  add(missing.segments, "segment", "what PyTorch held from the driver is known at the end alone");
}

std::vector<std::string> NotesOn(const Recording& recording, const Phases& p) {
  std::vector<std::string> notes;
  const Ledger& ledger = p.ledger;
  if (p.timeline.settings.trace_overflowed) {
    notes.push_back(OverflowNote(p));
  } else if (ledger.before > 0 && !p.timeline.events.empty()) {
    notes.push_back(
        fmt::format("the record begins mid-run: {} block(s), {}, were there before its "
                    "first event; peaks before it are not known",
                    ledger.before, FormatBytes(ledger.initial_allocated)));
  }
  if (p.timeline.events.empty()) {
    notes.push_back(
        "the record has no events (history was not switched on): this is the state when "
        "it was made");
  } else if (p.complete_steps == 0 && p.fatal) {
    notes.push_back(fmt::format(
        "the record ends before {}: it cannot show whether the job would fit; `plimsoll predict` "
        "can, and so can a record at a smaller batch",
        p.Trains() ? "the first training step is complete" : "any backward"));
  }
  const bool snapshot = recording.format.starts_with("PyTorch memory snapshot");
  if (!p.timeline.events.empty() && !p.framed && snapshot) notes.push_back(HowToGetStacks(p));
  NoteMissingKinds(ledger.missing, notes);
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

bool UsesDataParallel(const AnalysedTrace& trace) {
  for (std::size_t s = 0; s < trace.timeline.stacks.stack_count(); ++s) {
    if ((trace.stacks.of(StackId(s)).signs & kSignDataParallel) != 0) return true;
  }
  return false;
}

/// Where no backward tells the steps, the program's own marks do.
void TakeMarkedSteps(const AnalysedTrace& trace, RankReport& rank) {
  if (trace.phases.steps > 0) return;
  std::vector<StepReport> marked = MarkedSteps(trace.phases, trace.sweep);
  if (marked.empty()) return;
  rank.steps = static_cast<std::int64_t>(marked.size());
  rank.step_table = std::move(marked);
}

/// "in the backward of step 3, in train": by the record, and by the program's own marks.
std::string WhatItDid(const Phases& phases, Position at) {
  const std::string phase = PhaseAt(phases, at);
  const std::string mark = MarkAt(phases, at);
  return phase + (phase.empty() || mark.empty() ? "" : ", ") + mark;
}

/// What the record says of one device, before anything is judged.
RankReport DescribeRank(const Recording& recording, const AnalysedTrace& trace,
                        const Account& account, const Instant& instant) {
  const Timeline& timeline = trace.timeline;
  RankReport rank;
  rank.file = recording.file;
  rank.format = recording.format;
  rank.rank = RankFromName(recording.file);
  rank.device = timeline.device;
  rank.torch = timeline.torch;
  rank.prediction = timeline.prediction;
  rank.script = ScriptOf(timeline.stacks);
  rank.events = static_cast<std::int64_t>(timeline.events.size());
  if (!timeline.events.empty()) rank.steps = trace.phases.steps;
  rank.complete_steps = trace.phases.complete_steps;
  rank.data_parallel = UsesDataParallel(trace);
  rank.peak_allocated = trace.ledger.peak_allocated;
  rank.peak_reserved = std::max(trace.ledger.peak_reserved, account.reserved);
  for (const Totals& totals : timeline.totals) {
    if (trace.ledger.has_segments) break;
    rank.peak_reserved = std::max(*rank.peak_reserved, totals.reserved);
  }
  rank.budget = timeline.settings.budget;
  rank.instant = instant;
  rank.instant.allocated = account.allocated;
  rank.instant.reserved = account.reserved;
  rank.account = account.lines;
  rank.peaks = trace.sweep.peaks;
  rank.step_table = trace.sweep.steps;
  rank.marks = MarkTable(trace.phases, trace.sweep);
  rank.pools = PoolTable(trace.phases);
  rank.pinned = PinnedTable(timeline, trace.stacks);
  TakeMarkedSteps(trace, rank);
  rank.presence = PresenceOf(timeline);
  rank.notes = NotesOn(recording, trace.phases);
  return rank;
}

/// What is left for the process: of its budget, else of the device, where the driver told it.
void AddFree(RankReport& rank) {
  if (!rank.budget && rank.RanOut() && rank.ooms.back().device_free) {
    rank.account.push_back({.what = AccountItem::kFree,
                            .bytes = *rank.ooms.back().device_free,
                            .confidence = Confidence::kHigh,
                            .because = "free on the device, says the driver"});
  }
  AddRoomLeft(rank);
}

/// One device of one trace: where every byte is at the instant that matters, who holds it, and why.
Explanation ExplainTrace(const Recording& recording, const AnalysedTrace& trace,
                         const ExplainOptions& options) {
  Position at = kBefore;
  const Instant instant = ChooseInstant(trace.phases, options, at);
  const Account account = AccountAt(trace.phases, trace.attribution, at);
  const Evidence evidence{trace, account, at};

  RankReport rank = DescribeRank(recording, trace, account, instant);
  rank.phase = WhatItDid(trace.phases, at);
  rank.holders = HoldersAt(trace.phases, trace.attribution, at);
  KeepLargest(rank.holders, options.most_holders);
  if (options.group) {
    rank.group_by = options.group->text();
    rank.groups = GroupsAt(trace.phases, at, *options.group);
  }
  rank.ooms = OomRows(evidence);
  AddFree(rank);

  Explanation explanation;
  explanation.findings = FindAll(evidence);
  for (Finding& finding : explanation.findings) finding.rank = rank.rank;
  explanation.verdict = TraceVerdict(rank, explanation.findings);
  explanation.ranks.push_back(std::move(rank));
  return explanation;
}

}  // namespace

Result<Explanation> ExplainRecording(const AnalysedRecording& analysed,
                                     const ExplainOptions& options) {
  const Recording& recording = analysed.recording;
  std::vector<Explanation> parts;
  std::int64_t most_events = 0;
  for (const auto& trace : analysed.traces) {
    const auto events = static_cast<std::int64_t>(trace->timeline.events.size());
    most_events = std::max(most_events, events);
    if (options.at_event && *options.at_event >= events) continue;
    parts.push_back(ExplainTrace(recording, *trace, options));
  }
  if (options.at_event && parts.empty() && !recording.timelines.empty()) {
    return Error{.message = fmt::format("there is no event {}; it has {} events", *options.at_event,
                                        most_events),
                 .file = recording.file,
                 .hint = "they are counted from 0"};
  }
  const std::optional<int> file_rank = RankFromName(recording.file);
  if (!recording.messages.empty()) {
    parts.push_back(ExplainMessages(recording, file_rank));
  }
  if (!recording.summaries.empty()) parts.push_back(ExplainSummaries(recording));
  if (!recording.logged.empty()) {
    if (parts.empty()) {
      parts.push_back(ExplainLog(recording, file_rank));
    } else {
      AddLog(recording, file_rank, parts.front());
    }
  }
  if (recording.categories) parts.push_back(ExplainCategories(recording));
  if (parts.empty()) {
    return Error{.message = "nothing about memory was found in it", .file = recording.file};
  }
  return Join(std::move(parts));
}

Result<Explanation> ExplainRecording(const Recording& recording, const ExplainOptions& options) {
  return ExplainRecording(AnalyseRecording(recording), options);
}

}  // namespace plimsoll

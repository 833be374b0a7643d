#include "diagnose/neighbours/turns.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "diagnose/attribution/account.h"
#include "diagnose/neighbours/presence.h"
#include "diagnose/phases/marks.h"
#include "diagnose/phases/phase_at.h"

namespace plimsoll {
namespace {

constexpr std::size_t kMostMarks = 6;

/// The program's own marks, not those that lie in others.
std::vector<MarkRange> OuterMarks(const Timeline& timeline) {
  std::vector<MarkRange> marks = MarkRanges(timeline);
  std::erase_if(marks, [&](const MarkRange& m) {
    return m.depth > 0 || IsTorchMark(timeline.stacks.strings[m.name]);
  });
  return marks;
}

std::vector<std::string> MarksIn(const Timeline& timeline, const std::vector<MarkRange>& marks,
                                 const TimeRange& time) {
  std::vector<std::string> names;
  for (const MarkRange& m : marks) {
    if (m.begin > time.end) break;
    if (m.end < time.begin) continue;
    std::string name(timeline.stacks.strings[m.name]);
    if (std::ranges::find(names, name) != names.end()) continue;
    if (names.size() == kMostMarks) {
      names.back() = "…";
      break;
    }
    names.push_back(std::move(name));
  }
  return names;
}

/// " at train.py:12 in main" of the event nearest to a position that has a line.
std::string LineNear(const AnalysedTrace& trace, Position from, int step) {
  constexpr int kFar = 2000;
  const auto count = static_cast<Position>(trace.timeline.events.size());
  for (int i = 0; i < kFar; ++i, from += step) {
    if (from < 0 || from >= count) break;
    const Event& e = trace.timeline.events[static_cast<std::size_t>(from)];
    if (e.action != Action::kAlloc && e.action != Action::kOutOfMemory) continue;
    const std::string where = trace.stacks.WhereOf(e.stack);
    if (!where.empty()) return "at " + where;
  }
  return "";
}

struct Busy {
  TimeRange time;
  std::size_t process = 0;
};

std::vector<Busy> AllBusy(const std::vector<std::vector<TimeRange>>& busy) {
  std::vector<Busy> all;
  for (std::size_t p = 0; p < busy.size(); ++p) {
    for (const TimeRange& time : busy[p]) all.push_back({time, p});
  }
  std::ranges::stable_sort(all, {}, [](const Busy& b) { return b.time.begin; });
  return all;
}

CardShare ShareAt(const AnalysedTrace& trace, Position at) {
  const Account account = AccountAt(trace.phases, trace.attribution, at);
  return {.reserved = account.reserved, .allocated = account.allocated, .cached = account.cached};
}

}  // namespace

HeldCurve CurveOf(const AnalysedTrace& trace) {
  HeldCurve curve{.initial = trace.ledger.initial_reserved};
  Bytes held = curve.initial;
  for (const Event& e : trace.timeline.events) {
    const bool more = e.action == Action::kSegmentAlloc || e.action == Action::kSegmentMap;
    const bool less = e.action == Action::kSegmentFree || e.action == Action::kSegmentUnmap;
    if (!more && !less) continue;
    held += more ? e.size : -e.size;
    curve.changes.push_back({e.time_us, held});
  }
  return curve;
}

Position PositionAt(const AnalysedTrace& trace, TimeUs time) {
  const std::vector<Event>& events = trace.timeline.events;
  const auto after = std::partition_point(events.begin(), events.end(),
                                          [&](const Event& e) { return e.time_us <= time; });
  return static_cast<Position>(after - events.begin()) - 1;
}

std::string DoneBefore(const AnalysedTrace& trace, TimeUs time) {
  const MarkRange* last = nullptr;
  const std::vector<MarkRange> marks = OuterMarks(trace.timeline);
  for (const MarkRange& m : marks) {
    if (m.begin > time) break;
    last = &m;
  }
  if (last != nullptr) {
    return fmt::format("{} {}", last->end <= time ? "after" : "in",
                       trace.timeline.stacks.strings[last->name]);
  }
  const Position at = PositionAt(trace, time);
  // Without steps a phase says little; the line says more.
  if (trace.phases.steps > 0) return PhaseAt(trace.phases, at);
  return LineNear(trace, at, -1);
}

std::string DoneFrom(const AnalysedTrace& trace, const TimeRange& turn) {
  for (const MarkRange& m : OuterMarks(trace.timeline)) {
    if (m.end <= turn.begin) continue;
    if (m.begin > turn.end) break;
    return fmt::format("{} {}", m.Covers(turn.begin) ? "in" : "before",
                       trace.timeline.stacks.strings[m.name]);
  }
  const Position at = PositionAt(trace, turn.begin - 1) + 1;
  if (trace.phases.steps > 0) return PhaseAt(trace.phases, at);
  return LineNear(trace, at, 1);
}

std::vector<Turn> TurnsOf(const std::vector<CardTrace>& traces) {
  TimeUs first = 0;
  TimeUs last = 0;
  for (const CardTrace& t : traces) {
    const std::optional<Presence> presence = PresenceOf(t.trace.timeline);
    if (!presence) return {};
    first = first == 0 ? presence->record.begin : std::min(first, presence->record.begin);
    last = std::max(last, presence->record.end);
  }
  std::vector<std::vector<TimeRange>> busy;
  for (const CardTrace& t : traces) {
    busy.push_back(BusyTimes(t.trace.timeline, LeastPause({first, last})));
  }
  for (std::size_t i = 0; i < busy.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (WorkAtOnce(busy[i], busy[j])) return {};
    }
  }
  std::vector<Turn> turns;
  for (const Busy& b : AllBusy(busy)) {
    const bool inside = !turns.empty() && b.time.end <= turns.back().time.end;
    if (inside) continue;
    if (!turns.empty() && turns.back().process == b.process) {
      turns.back().time.end = b.time.end;
    } else {
      turns.push_back({.process = b.process, .time = b.time, .marks = {}, .held = {}});
    }
  }
  std::vector<std::vector<MarkRange>> marks;
  for (const CardTrace& t : traces) marks.push_back(OuterMarks(t.trace.timeline));
  for (Turn& turn : turns) {
    turn.marks = MarksIn(traces[turn.process].trace.timeline, marks[turn.process], turn.time);
  }
  return turns;
}

std::vector<HandOver> HandOversOf(const std::vector<Turn>& turns) {
  std::vector<HandOver> found;
  for (std::size_t i = 1; i < turns.size(); ++i) {
    // At their start processes load side by side: that is no hand-over.
    if (turns[i - 1].time.end > turns[i].time.begin) continue;
    HandOver& h = found.emplace_back();
    h.from = turns[i - 1].process;
    h.to = turns[i].process;
    h.time_us = turns[i].time.begin;
    h.turn = turns[i].time;
  }
  return found;
}

void AddDetails(const std::vector<CardTrace>& traces, HandOver& h) {
  h.after = DoneBefore(traces[h.from].trace, h.time_us);
  h.before = DoneFrom(traces[h.to].trace, h.turn);
  for (std::size_t p = 0; p < traces.size(); ++p) {
    h.held.push_back(ShareAt(traces[p].trace, PositionAt(traces[p].trace, h.time_us - 1)));
    if (p != h.to) h.not_given_back += h.held.back().cached;
  }
}

}  // namespace plimsoll

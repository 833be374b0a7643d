#include "diagnose/attribution/mark_table.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "base/text.h"
#include "diagnose/phases/marks.h"

namespace plimsoll {
namespace {

constexpr std::size_t kMostMarkNames = 40;
constexpr int kMostDepth = 8;
/// A page has room for as many, and more say nothing.
constexpr std::size_t kMostStretches = 4000;

/// "train" of "train#3", "train 3", "train_3".
std::string_view WithoutNumber(std::string_view name) {
  std::string_view rest = name;
  while (!rest.empty() && IsDigit(rest.back())) rest.remove_suffix(1);
  if (rest.size() == name.size() || rest.empty()) return name;
  const std::size_t last = rest.find_last_not_of(" #_-:./");
  const bool apart = last != kNowhere && last + 1 < rest.size();
  return apart ? rest.substr(0, last + 1) : name;
}

bool IsStepMark(std::string_view name) {
  return name.starts_with("plimsoll.step#") || name.starts_with("ProfilerStep#");
}

/// What a program means by its own names, as people choose them.
Stage StageOfName(std::string_view name) {
  const std::string lower = Lower(name);
  const auto says = [&](std::initializer_list<std::string_view> words) {
    return std::ranges::any_of(words, [&](std::string_view w) { return Contains(lower, w); });
  };
  if (says({"eval", "valid"})) return Stage::kEvaluation;
  if (says({"save", "saving", "write_checkpoint"})) return Stage::kSave;
  if (says({"load", "resume", "restore"})) return Stage::kLoad;
  if (says({"rollout", "generat"})) return Stage::kGeneration;
  if (says({"backward"})) return Stage::kBackward;
  if (says({"forward"})) return Stage::kForward;
  if (says({"optim"})) return Stage::kOptimizer;
  if (says({"train", "step", "update"})) return Stage::kStep;
  return Stage::kUnknown;
}

/// What is held from the driver after each event.
std::vector<Bytes> ReservedAfterEach(const Phases& p) {
  std::vector<Bytes> reserved;
  reserved.reserve(p.timeline.events.size());
  Bytes held = p.ledger.initial_reserved;
  for (const Event& e : p.timeline.events) {
    const bool more = e.action == Action::kSegmentAlloc || e.action == Action::kSegmentMap;
    const bool less = e.action == Action::kSegmentFree || e.action == Action::kSegmentUnmap;
    held += more ? e.size : less ? -e.size : 0;
    reserved.push_back(held);
  }
  return reserved;
}

/// Events of a time range; empty where last < first.
struct EventSpan {
  std::size_t first = 0;
  std::size_t after = 0;
};

EventSpan SpanOf(const Timeline& timeline, const MarkRange& mark) {
  const auto position = [&](TimeUs time) {
    return static_cast<std::size_t>(
        std::partition_point(timeline.events.begin(), timeline.events.end(),
                             [&](const Event& e) { return e.time_us < time; }) -
        timeline.events.begin());
  };
  return {position(mark.begin),
          mark.end == MarkRange::kOpen ? timeline.events.size() : position(mark.end)};
}

/// The highest of them; what was there before them where there are none.
Bytes HighestIn(const std::vector<Bytes>& values, const EventSpan& span, Bytes before) {
  Bytes most = before;
  for (std::size_t i = span.first; i < span.after; ++i) most = std::max(most, values[i]);
  return most;
}

Bytes ValueBefore(const std::vector<Bytes>& values, std::size_t at, Bytes initial) {
  return at == 0 ? initial : values[at - 1];
}

/// The program's own, and not those that PyTorch sets around what it does.
std::vector<MarkRange> OwnRanges(const Timeline& timeline) {
  std::vector<MarkRange> ranges = MarkRanges(timeline);
  std::erase_if(ranges, [&](const MarkRange& mark) {
    const std::string_view name = timeline.stacks.strings[mark.name];
    return IsTorchMark(name) || IsStepMark(name) || mark.depth >= kMostDepth;
  });
  return ranges;
}

std::size_t KeepOutermost(std::vector<HistoryStretch>& stretches) {
  const std::size_t before = stretches.size();
  if (before > kMostStretches) {
    std::erase_if(stretches, [](const HistoryStretch& s) { return s.depth > 0; });
  }
  if (stretches.size() > kMostStretches) {
    const auto longer = [](const HistoryStretch& a, const HistoryStretch& b) {
      return a.last - a.first > b.last - b.first;
    };
    std::ranges::stable_sort(stretches, longer);
    stretches.resize(kMostStretches);
    std::ranges::stable_sort(stretches, {}, &HistoryStretch::first);
  }
  return before - stretches.size();
}

}  // namespace

MarkedStretches StretchesOfMarks(const Phases& p) {
  MarkedStretches marked;
  std::vector<TimeUs> ends;
  for (const MarkRange& mark : OwnRanges(p.timeline)) {
    const EventSpan span = SpanOf(p.timeline, mark);
    if (span.first >= span.after) continue;
    while (!ends.empty() && ends.back() <= mark.begin) ends.pop_back();
    const std::string_view name = WithoutNumber(p.timeline.stacks.strings[mark.name]);
    marked.stretches.push_back({.stage = StageOfName(name),
                                .first = static_cast<Position>(span.first),
                                .last = static_cast<Position>(span.after) - 1,
                                .depth = static_cast<std::int32_t>(ends.size()),
                                .name = std::string(name)});
    ends.push_back(mark.end);
  }
  marked.left_out = KeepOutermost(marked.stretches);
  return marked;
}

std::vector<MarkReport> MarkTable(const Phases& p, const Sweep& sweep) {
  std::vector<MarkReport> table;
  if (p.timeline.annotations.empty()) return table;
  const std::vector<Bytes> reserved = ReservedAfterEach(p);
  std::map<std::string, std::size_t, std::less<>> rows;
  for (const MarkRange& mark : MarkRanges(p.timeline)) {
    const std::string_view whole = p.timeline.stacks.strings[mark.name];
    if (IsTorchMark(whole) || IsStepMark(whole)) continue;
    // At each depth they lie one after the other: so it stays a few passes over the events.
    if (mark.depth >= kMostDepth) continue;
    const std::string name(WithoutNumber(whole));
    const auto [at, fresh] = rows.try_emplace(name, table.size());
    if (fresh && table.size() == kMostMarkNames) {
      rows.erase(at);
      continue;
    }
    if (fresh) table.push_back({.name = name, .stage = StageOfName(name), .depth = mark.depth});
    MarkReport& row = table[at->second];
    const EventSpan span = SpanOf(p.timeline, mark);
    const Bytes before = ValueBefore(sweep.allocated, span.first, p.ledger.initial_allocated);
    const Bytes held = ValueBefore(reserved, span.first, p.ledger.initial_reserved);
    ++row.times;
    row.peak_allocated = std::max(row.peak_allocated, HighestIn(sweep.allocated, span, before));
    row.peak_reserved = std::max(row.peak_reserved, HighestIn(reserved, span, held));
    row.left =
        ValueBefore(sweep.allocated, std::max(span.first, span.after), p.ledger.initial_allocated) -
        before;
  }
  return table;
}

std::vector<StepReport> MarkedSteps(const Phases& p, const Sweep& sweep) {
  std::vector<StepReport> steps;
  std::vector<Bytes> reserved;
  for (const MarkRange& mark : MarkRanges(p.timeline)) {
    if (mark.depth >= kMostDepth || !IsStepMark(p.timeline.stacks.strings[mark.name])) continue;
    const EventSpan span = SpanOf(p.timeline, mark);
    if (span.first >= span.after) continue;
    if (reserved.empty()) reserved = ReservedAfterEach(p);
    steps.push_back({.first_event = static_cast<std::int64_t>(span.first),
                     .last_event = static_cast<std::int64_t>(span.after) - 1,
                     .peak_allocated = HighestIn(sweep.allocated, span, 0),
                     .peak_reserved = HighestIn(reserved, span, 0),
                     .end_allocated = sweep.allocated[span.after - 1]});
  }
  return steps;
}

std::string MarkAt(const Phases& p, Position at) {
  if (at < 0) return "";
  const TimeUs time = p.timeline.events[static_cast<std::size_t>(at)].time_us;
  for (const MarkRange& mark : MarkRanges(p.timeline)) {
    if (mark.begin > time) break;
    const std::string_view name = p.timeline.stacks.strings[mark.name];
    if (!mark.Covers(time) || IsTorchMark(name) || IsStepMark(name)) continue;
    return "in " + std::string(name);
  }
  return "";
}

}  // namespace plimsoll

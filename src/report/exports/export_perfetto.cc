#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>

#include "report/exports/export_run.h"
#include "report/exports/exports.h"
#include "report/format/json_values.h"

namespace plimsoll {
namespace {

using Kind = HistoryChange::Kind;

/// What a browser still shows smoothly.
constexpr std::size_t kMostSamples = 200'000;
constexpr std::size_t kMostBlocks = 2'000;
/// Bytes of a block's stack.
constexpr std::size_t kLongestStack = 32'000;

bool HasTimes(const History& history) {
  return std::any_of(history.times.begin(), history.times.end(), [](TimeUs t) { return t != 0; });
}

/// The earliest time of all runs, so that the clocks of ranks stay side by side.
TimeUs FirstTime(const std::vector<ExportedRun>& runs) {
  TimeUs first = std::numeric_limits<TimeUs>::max();
  for (const ExportedRun& run : runs) {
    for (const TimeUs t : run.history->times) {
      if (t != 0) first = std::min(first, t);
    }
  }
  return first == std::numeric_limits<TimeUs>::max() ? 0 : first;
}

/// Microseconds of the trace. Where the record has no times, an event takes one.
class Clock {
 public:
  Clock(const History& history, TimeUs first) : recorded_(HasTimes(history)) {
    ticks_.reserve(history.times.size());
    TimeUs now = 0;
    for (std::size_t i = 0; i < history.times.size(); ++i) {
      // Threads write their events a little out of order; what happens does not.
      now = recorded_ ? std::max(now, history.times[i] - first) : static_cast<TimeUs>(i);
      ticks_.push_back(now);
    }
  }

  bool recorded() const { return recorded_; }
  TimeUs At(Position at) const {
    if (ticks_.empty()) return 0;
    if (at < 0) return ticks_.front();
    const auto index = static_cast<std::size_t>(at);
    return index < ticks_.size() ? ticks_[index] : ticks_.back() + 1;
  }
  /// When a stretch is over whose last event is `last`: what follows may begin at once.
  TimeUs AfterEvent(Position last) const { return std::min(At(last) + 1, At(last + 1)); }

 private:
  bool recorded_;
  std::vector<TimeUs> ticks_;
};

/// A list of trace events, one a line.
class EventList {
 public:
  template <typename... Args>
  void Add(fmt::format_string<Args...> format, Args&&... args) {
    if (!json_.empty()) json_ += ",\n";
    json_ += fmt::format(format, std::forward<Args>(args)...);
  }
  const std::string& json() const { return json_; }

 private:
  std::string json_;
};

/// A counter's value after an event.
struct Point {
  Position at = kBefore;
  Bytes value = 0;
};

/// All points, or of each of many stretches the lowest and the highest: no peak is lost.
std::vector<Position> Sampled(const std::vector<Point>& points) {
  std::vector<Position> kept;
  const auto keep = [&](Position at) {
    if (kept.empty() || kept.back() < at) kept.push_back(at);
  };
  if (points.size() <= kMostSamples) {
    for (const Point& point : points) keep(point.at);
    return kept;
  }
  constexpr std::size_t kStretches = kMostSamples / 2;
  keep(points.front().at);
  for (std::size_t s = 0; s < kStretches; ++s) {
    const auto begin = points.begin() + static_cast<std::ptrdiff_t>(points.size() * s / kStretches);
    const auto end =
        points.begin() + static_cast<std::ptrdiff_t>(points.size() * (s + 1) / kStretches);
    const auto [low, high] = std::minmax_element(
        begin, end, [](const Point& a, const Point& b) { return a.value < b.value; });
    keep(std::min(low->at, high->at));
    keep(std::max(low->at, high->at));
  }
  keep(points.back().at);
  return kept;
}

/// Calls `after(position, held)` for each event that changes something.
template <typename After>
void Walk(const History& history, const std::vector<HistoryChange>& changes, After after) {
  HeldMemory held(history);
  for (std::size_t i = 0; i < changes.size(); ++i) {
    held.Apply(changes[i]);
    const bool last = i + 1 == changes.size() || changes[i + 1].at != changes[i].at;
    if (last) after(changes[i].at, held);
  }
}

/// One run as a process of the trace.
class RunTrace {
 public:
  RunTrace(const ExportedRun& run, std::size_t number, TimeUs first, EventList& events)
      : run_(run),
        history_(*run.history),
        clock_(history_, first),
        // Perfetto knows threads by their number alone, so these differ among the processes.
        pid_(10 * (number + 1)),
        events_(events) {}

  /// Returns what otherData says of the run.
  Json Write() {
    WriteNames();
    WriteCounters();
    WriteLimit("limit", run_.rank == nullptr ? std::nullopt : run_.rank->limit);
    WriteLimit("capacity", run_.rank == nullptr ? std::nullopt : run_.rank->capacity);
    WriteMarks(StepThread(), true);
    WriteMarks(PhaseThread(), false);
    WriteOoms();
    WriteBlocks();
    return About();
  }

 private:
  std::size_t StepThread() const { return pid_ + 1; }
  std::size_t PhaseThread() const { return pid_ + 2; }

  void WriteNames();
  void WriteCounters();
  void WriteCategories(const std::vector<HistoryChange>& changes);
  void WriteReserved(const std::vector<HistoryChange>& changes);
  void WriteLimit(std::string_view name, const std::optional<Bytes>& limit);
  void WriteMarks(std::size_t thread, bool steps);
  void WriteOoms();
  void WriteBlocks();
  void WriteBlock(std::uint32_t index);
  std::vector<std::uint32_t> LargestBlocks() const;
  TimeUs EndOf(const HistoryBlock& block) const {
    // A slice that begins and ends at once would not be seen.
    return std::max(clock_.At(block.released), clock_.At(block.made) + 1);
  }
  std::string StackText(std::uint32_t node) const;
  Json About() const;

  const ExportedRun& run_;
  const History& history_;
  Clock clock_;
  std::size_t pid_;
  EventList& events_;
  std::size_t changes_ = 0;
  std::size_t samples_ = 0;
  std::size_t blocks_ = 0;
};

void RunTrace::WriteNames() {
  std::string name = RunName(run_);
  if (run_.rank != nullptr && !run_.rank->file.empty()) name += " (" + run_.rank->file + ")";
  events_.Add(R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":{}}}}})", pid_,
              JsonText(name));
  events_.Add(R"({{"ph":"M","name":"process_sort_index","pid":{0},"args":{{"sort_index":{0}}}}})",
              pid_);
  constexpr std::string_view kThread =
      R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}"}}}})";
  events_.Add(kThread, pid_, StepThread(), "steps");
  events_.Add(kThread, pid_, PhaseThread(), "phases");
}

void RunTrace::WriteCounters() {
  const std::vector<HistoryChange> changes = ChangesOf(history_);
  WriteCategories(changes);
  WriteReserved(changes);
}

void RunTrace::WriteCategories(const std::vector<HistoryChange>& changes) {
  // Categories that the run never has would only be empty tracks.
  std::vector<bool> used(history_.categories.size());
  bool rounded = false;
  for (const HistoryBlock& block : history_.blocks) {
    used[block.category] = true;
    rounded |= block.size > block.requested;
  }
  std::vector<std::string> keys;
  keys.reserve(history_.categories.size());
  for (const std::string& category : history_.categories) keys.push_back(JsonText(category));

  std::vector<Point> points;
  std::vector<Bytes> before;
  Walk(history_, changes, [&](Position at, const HeldMemory& held) {
    const bool same = !points.empty() && points.back().value == held.allocated();
    if (same && before == held.by_category()) return;
    points.push_back({at, held.allocated()});
    before = held.by_category();
  });
  const std::vector<Position> kept = Sampled(points);
  changes_ = points.size();
  samples_ = kept.size();
  auto next = kept.begin();
  Walk(history_, changes, [&](Position at, const HeldMemory& held) {
    if (next == kept.end() || *next != at) return;
    ++next;
    std::string args;
    for (std::size_t c = 0; c < keys.size(); ++c) {
      if (!used[c]) continue;
      if (!args.empty()) args += ',';
      args += fmt::format("{}:{}", keys[c], held.by_category()[c]);
    }
    if (rounded) args += fmt::format(",\"rounding\":{}", held.rounding());
    events_.Add(R"({{"ph":"C","name":"allocated by category","pid":{},"ts":{},"args":{{{}}}}})",
                pid_, clock_.At(at), args);
  });
}

void RunTrace::WriteReserved(const std::vector<HistoryChange>& changes) {
  std::vector<Point> points;
  Walk(history_, changes, [&](Position at, const HeldMemory& held) {
    if (points.empty() || points.back().value != held.reserved()) {
      points.push_back({at, held.reserved()});
    }
  });
  auto point = points.begin();
  for (const Position at : Sampled(points)) {
    while (point->at != at) ++point;
    events_.Add(R"({{"ph":"C","name":"reserved","pid":{},"ts":{},"args":{{"bytes":{}}}}})", pid_,
                clock_.At(at), point->value);
  }
}

void RunTrace::WriteLimit(std::string_view name, const std::optional<Bytes>& limit) {
  if (!limit) return;
  // A line needs its two ends.
  for (const Position at : {kBefore, kNotYet}) {
    events_.Add(R"({{"ph":"C","name":"{}","pid":{},"ts":{},"args":{{"bytes":{}}}}})", name, pid_,
                clock_.At(at), *limit);
  }
}

void RunTrace::WriteMarks(std::size_t thread, bool steps) {
  std::vector<HistoryMark> marks;
  for (const HistoryMark& mark : history_.marks) {
    if ((mark.stage == Stage::kStep) == steps) marks.push_back(mark);
  }
  std::stable_sort(marks.begin(), marks.end(),
                   [](const HistoryMark& a, const HistoryMark& b) { return a.first < b.first; });
  // Slices of one thread may not overlap.
  TimeUs free_from = 0;
  for (const HistoryMark& mark : marks) {
    const TimeUs from = std::max(clock_.At(mark.first), free_from);
    const TimeUs until = clock_.AfterEvent(mark.last);
    if (until < from) continue;
    const std::string name =
        steps ? fmt::format("step {}", mark.step) : std::string(StageName(mark.stage));
    events_.Add(R"({{"ph":"X","cat":"{}","name":"{}","pid":{},"tid":{},"ts":{},"dur":{},)"
                R"("args":{{"step":{},"first_event":{},"last_event":{}}}}})",
                steps ? "step" : "phase", name, pid_, thread, from, until - from, mark.step,
                mark.first, mark.last);
    free_from = until;
  }
}

void RunTrace::WriteOoms() {
  if (run_.rank == nullptr) return;
  for (const OomReport& oom : run_.rank->ooms) {
    // One that only an error text tells of has no place in time.
    if (!oom.event) continue;
    const std::string size = oom.requested ? ": " + FormatBytes(*oom.requested) : "";
    const Json args = {{"process", RunName(run_)},
                       {"event", *oom.event},
                       {"requested", OrNull(oom.requested)},
                       {"device_free", OrNull(oom.device_free)},
                       {"fatal", oom.fatal},
                       {"caught", oom.caught},
                       {"why", OomCauseName(oom.why)},
                       {"where", oom.where}};
    events_.Add(R"({{"ph":"i","s":"g","cat":"oom","name":{},"pid":{},"tid":{},"ts":{},"args":{}}})",
                JsonText((oom.fatal ? "out of memory" : "out of memory, survived") + size), pid_,
                StepThread(), clock_.At(static_cast<Position>(*oom.event)),
                PrintableJson(WriteJson(args)));
  }
}

std::vector<std::uint32_t> RunTrace::LargestBlocks() const {
  std::vector<std::pair<double, std::uint32_t>> weights;
  weights.reserve(history_.blocks.size());
  for (std::uint32_t i = 0; i < history_.blocks.size(); ++i) {
    const HistoryBlock& block = history_.blocks[i];
    const auto life = static_cast<double>(EndOf(block) - clock_.At(block.made));
    weights.emplace_back(-static_cast<double>(block.size) * life, i);
  }
  const std::size_t count = std::min(kMostBlocks, weights.size());
  std::partial_sort(weights.begin(), weights.begin() + static_cast<std::ptrdiff_t>(count),
                    weights.end());
  std::vector<std::uint32_t> largest;
  for (std::size_t i = 0; i < count; ++i) largest.push_back(weights[i].second);
  // In order of time, as the rest of the file.
  std::sort(largest.begin(), largest.end());
  return largest;
}

void RunTrace::WriteBlocks() {
  const std::vector<std::uint32_t> largest = LargestBlocks();
  blocks_ = largest.size();
  for (const std::uint32_t index : largest) WriteBlock(index);
}

/// Blocks overlap as they like, which slices of a thread may not: they are asynchronous ones.
void RunTrace::WriteBlock(std::uint32_t index) {
  const HistoryBlock& block = history_.blocks[index];
  const std::string& place = history_.names[block.place];
  const std::string name = JsonText(place.empty() ? "(no stack)" : place);
  const auto common = [&](char stage, TimeUs at) {
    return fmt::format(
        R"("ph":"{}","cat":"block","id":"{}.{}","name":{},"pid":{},"tid":{},"ts":{})", stage, pid_,
        index, name, pid_, pid_, at);
  };
  events_.Add(R"({{{},"args":{{"bytes":{},"category":{},"module":{},"block":{},"stack":{}}}}})",
              common('b', clock_.At(block.made)), block.size,
              JsonText(history_.categories[block.category]), JsonText(history_.names[block.module]),
              index, JsonText(StackText(block.node)));
  events_.Add("{{{}}}", common('e', EndOf(block)));
}

/// Innermost frame first, a line each.
std::string RunTrace::StackText(std::uint32_t node) const {
  std::string text;
  for (; node != 0; node = history_.nodes[node].parent) {
    const HistoryNode& frame = history_.nodes[node];
    if (!text.empty()) text += '\n';
    if (text.size() > kLongestStack) return text + "…";
    text += fmt::format("{}:{} in {}", history_.names[frame.file], frame.line,
                        history_.names[frame.function]);
  }
  return text;
}

Json RunTrace::About() const {
  return {{"process", pid_},
          {"name", RunName(run_)},
          {"file", run_.rank == nullptr ? "" : run_.rank->file},
          {"events", history_.times.size()},
          {"time", clock_.recorded() ? "recorded" : "1 event = 1 us, the record has no times"},
          {"samples", samples_},
          {"samples_of", changes_},
          {"blocks", blocks_},
          {"blocks_of", history_.blocks.size()}};
}

}  // namespace

std::string PerfettoJson(const std::vector<ExportedRun>& runs) {
  const TimeUs first = FirstTime(runs);
  EventList events;
  Json about = Json::array();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    about.push_back(RunTrace(runs[i], i, first, events).Write());
  }
  const Json other = {
      {"exporter", "plimsoll"},
      {"first_time_us", first},
      {"samples", "of each stretch of a longer run the lowest and the highest total are kept"},
      {"blocks", "the largest by bytes x time"},
      {"runs", about}};
  // Perfetto knows a trace by its first key.
  std::string out = "{\"traceEvents\":[\n";
  out += events.json();
  out += "\n],\n\"displayTimeUnit\":\"ms\",\n\"otherData\":";
  out += Dump(other, kOneLine);
  out += "}\n";
  return out;
}

}  // namespace plimsoll

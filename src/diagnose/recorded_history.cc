#include "diagnose/recorded_history.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

#include "allocator/record/held_spans.h"
#include "diagnose/attribution/holders.h"
#include "diagnose/attribution/mark_table.h"

namespace plimsoll {
namespace {

void AddSpans(const Phases& p, History& history) {
  HeldSpans held(history.spans);
  for (const MappedRange& range : p.ledger.initial_ranges) held.Add(range);
  held.Settle(kBefore);
  for (std::size_t i = 0; i < p.timeline.events.size(); ++i) {
    const Event& e = p.timeline.events[i];
    if (e.action == Action::kSegmentAlloc || e.action == Action::kSegmentMap) {
      held.Add({e.address, e.size, e.stream, e.pool, e.action == Action::kSegmentMap});
    } else if (e.action == Action::kSegmentFree || e.action == Action::kSegmentUnmap) {
      held.Remove(e.address, e.size);
    } else {
      continue;
    }
    held.Settle(static_cast<Position>(i));
  }
}

/// Stacks as nodes, outermost frame first.
class NodeTable {
 public:
  NodeTable(const StackTable& stacks, const StackAnalysis& analysis, HistoryNames& names)
      : stacks_(stacks), analysis_(analysis), names_(names) {}

  std::uint32_t Of(StackId stack) {
    if (!stack.valid()) return 0;
    const auto [found, added] = known_.try_emplace(stack.index(), 0);
    if (added) found->second = Add(stack);
    return found->second;
  }

 private:
  std::uint32_t Add(StackId stack) {
    const auto frames = stacks_.stack(stack);
    // Where there are frames of Python, those of the interpreter and the dispatcher only hide them.
    const bool native = std::all_of(frames.begin(), frames.end(),
                                    [&](FrameId id) { return analysis_.IsNative(id); });
    std::uint32_t node = 0;
    for (auto id = frames.rbegin(); id != frames.rend(); ++id) {
      if (native ? !analysis_.Tells(*id) : analysis_.IsNative(*id)) continue;
      const Frame& frame = stacks_.frame(*id);
      node = names_.Node({.parent = node,
                          .function = NameOf(frame.function),
                          .file = NameOf(frame.file),
                          .line = frame.line});
    }
    return node;
  }

  /// Looked up once for each name, not for each frame of each stack.
  std::uint32_t NameOf(StringId name) {
    const auto [found, added] = name_of_.try_emplace(name, 0);
    if (added) found->second = names_.Name(stacks_.strings[name]);
    return found->second;
  }

  const StackTable& stacks_;
  const StackAnalysis& analysis_;
  HistoryNames& names_;
  std::unordered_map<std::size_t, std::uint32_t> known_;
  std::unordered_map<StringId, std::uint32_t> name_of_;
};

void AddBlocks(const Phases& p, const Attribution& attribution, History& history) {
  HistoryNames names(history);
  NodeTable nodes(p.timeline.stacks, p.stacks, names);
  // Naming a place takes long; a stack and a category have one between them, unless the backward
  // thread's events say which forward they belong to.
  std::map<std::tuple<StackId, Category, bool>, std::pair<std::uint32_t, std::uint32_t>> places;
  history.blocks.reserve(p.ledger.allocations.size());
  for (AllocationIndex a = 0; a < p.ledger.allocations.size(); ++a) {
    const Allocation& x = p.at(a);
    const Category category = attribution.category[a];
    const StackId naming = NamingStack(p, x);
    const std::tuple key = {naming, category, x.made == kBefore};
    auto place = places.find(key);
    if (place == places.end() || !naming.valid()) {
      const std::pair named = {names.Name(PlaceOf(p, attribution, a)),
                               names.Name(p.stacks.ModuleChain(naming))};
      place = places.insert_or_assign(key, named).first;
    }
    history.blocks.push_back({.address = x.address,
                              .requested = std::min(x.requested, x.block),
                              .size = x.block,
                              .made = x.made,
                              .released = x.released,
                              .freed = x.freed,
                              .category = static_cast<std::uint8_t>(category),
                              .node = nodes.Of(x.stack),
                              .place = place->second.first,
                              .module = place->second.second});
  }
}

void AddMarks(const AnalysedTrace& trace, History& history) {
  const Phases& p = trace.phases;
  using Kind = Stage;
  const auto add = [&](Kind kind, std::int64_t first, std::int64_t last, std::int32_t step) {
    if (first > last) return;
    history.marks.push_back(
        {kind, static_cast<Position>(first), static_cast<Position>(last), step});
  };
  std::int32_t number = 0;
  for (const StepReport& step : trace.sweep.steps) {
    add(Kind::kStep, step.first_event, step.last_event, ++number);
  }
  for (std::size_t i = 0; i < p.backwards.size(); ++i) {
    const Backward& b = p.backwards[i];
    const std::int32_t step = b.step + 1;
    if (b.forward_start) add(Kind::kForward, *b.forward_start, b.start - 1, step);
    add(Kind::kBackward, b.start, b.end, step);
    const Position optimizer_end =
        i + 1 < p.backwards.size() ? p.backwards[i + 1].optimizer_end : p.last_optimizer_end;
    add(Kind::kOptimizer, b.end + 1, optimizer_end, step);
  }
}

/// What the program marked; of one that marked nothing, where its steps are.
void AddStretches(const AnalysedTrace& trace, History& history) {
  MarkedStretches marked = StretchesOfMarks(trace.phases);
  history.stretches = std::move(marked.stretches);
  history.stretches_left_out = marked.left_out;
  const std::vector<StepReport>& steps = trace.sweep.steps;
  if (!history.stretches.empty() || steps.empty()) return;
  const auto add = [&](Stage stage, std::int64_t first, std::int64_t last, std::string name) {
    if (first > last) return;
    history.stretches.push_back({.stage = stage,
                                 .first = static_cast<Position>(first),
                                 .last = static_cast<Position>(last),
                                 .name = std::move(name)});
  };
  const std::int64_t first = steps.front().first_event;
  const std::int64_t last = steps.back().last_event;
  const std::string all = steps.size() == 1 ? "step 1" : fmt::format("steps 1 to {}", steps.size());
  add(Stage::kUnknown, 0, first - 1, "before the first step");
  add(Stage::kStep, first, last, all);
  add(Stage::kUnknown, last + 1, std::ssize(trace.timeline.events) - 1, "after the last step");
}

}  // namespace

History RecordedHistory(const AnalysedTrace& trace) {
  const Timeline& timeline = trace.timeline;
  const Ledger& ledger = trace.ledger;
  History history;
  history.device = timeline.device;
  history.has_spans = ledger.has_segments;
  history.times.reserve(timeline.events.size());
  for (const Event& e : timeline.events) history.times.push_back(e.time_us);
  for (std::size_t c = 0; c < kCategoryCount; ++c) {
    history.categories.emplace_back(CategoryName(static_cast<Category>(c)));
  }
  AddBlocks(trace.phases, trace.attribution, history);
  if (ledger.has_segments) AddSpans(trace.phases, history);
  for (const Totals& totals : timeline.totals) {
    if (ledger.has_segments) break;
    history.reserved.push_back({static_cast<Position>(totals.event), totals.reserved});
  }
  AddMarks(trace, history);
  AddStretches(trace, history);
  return history;
}

}  // namespace plimsoll

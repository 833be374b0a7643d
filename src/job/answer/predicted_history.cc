#include "job/answer/predicted_history.h"

#include <unordered_map>
#include <utility>

#include "allocator/record/held_spans.h"
#include "allocator/replay/replay.h"
#include "job/answer/place_parts.h"
#include "job/answer/predict.h"

namespace plimsoll {
namespace {

/// Who answers for a block, as a History names it.
struct Origin {
  std::uint32_t node = 0;
  std::uint32_t place = 0;
  std::uint32_t module = 0;
};

/// Calls and model tensors as little stacks: the user's line, the modules, the operator. Every
/// step makes the same calls again, so each is named once.
class Origins {
 public:
  Origins(const Job& job, const Variant& variant, History& history)
      : strings_(job.strings), variant_(variant), names_(history) {}

  Origin Of(const LoweredBlock& block) {
    if (block.model_tensor != LoweredBlock::kNoCall) return OfModelTensor(block.model_tensor);
    if (block.call == LoweredBlock::kNoCall) return {};
    const auto [found, added] = calls_.try_emplace(block.call);
    if (added) found->second = OfCall(variant_.calls[block.call]);
    return found->second;
  }

 private:
  Origin OfCall(const CallRecord& call) {
    const std::string_view where = strings_[call.where];
    const std::string_view module = strings_[call.module];
    const std::string_view op = strings_[call.op];
    std::uint32_t node = 0;
    if (!where.empty()) {
      const PlaceParts parts = PartsOf(where);
      node = names_.Node({.function = names_.Name(parts.function),
                          .file = names_.Name(parts.file),
                          .line = parts.line});
    }
    node = Below(BelowModules(node, module), op);
    return {node, names_.Name(where.empty() ? op : where), names_.Name(module)};
  }
  Origin OfModelTensor(std::uint32_t index) {
    const std::string_view name = strings_[variant_.model_tensors[index].name];
    const std::size_t dot = name.rfind('.');
    const bool in_module = dot != std::string_view::npos;
    const std::string_view module = in_module ? name.substr(0, dot) : std::string_view();
    const std::uint32_t node =
        Below(BelowModules(0, module), in_module ? name.substr(dot + 1) : name);
    return {node, names_.Name(name), names_.Name(module)};
  }

  std::uint32_t Below(std::uint32_t parent, std::string_view function) {
    if (function.empty()) return parent;
    return names_.Node({.parent = parent, .function = names_.Name(function)});
  }
  /// "transformer.h.3" is three frames.
  std::uint32_t BelowModules(std::uint32_t node, std::string_view path) {
    while (!path.empty()) {
      const std::size_t dot = std::min(path.find('.'), path.size());
      node = Below(node, path.substr(0, dot));
      path.remove_prefix(std::min(dot + 1, path.size()));
    }
    return node;
  }

  const StringTable& strings_;
  const Variant& variant_;
  HistoryNames names_;
  std::unordered_map<std::uint32_t, Origin> calls_;
};

/// Takes down what the allocator does, request by request.
class Recorder {
 public:
  Recorder(const Lowered& lowered, const AllocatorRules& rules, const DeviceLimits& limits,
           Origins& origins, History& history)
      : lowered_(lowered),
        rules_(rules),
        limits_(limits),
        origins_(origins),
        history_(history),
        held_(history.spans),
        block_of_(lowered.blocks.size(), 0) {}

  void Run() {
    const Timeline nothing_recorded;
    AssumedDriver driver(nothing_recorded);
    ReplayLog log;
    Replayer replayer(lowered_.workload, {.rules = rules_, .limits = limits_}, driver, &log);
    for (std::size_t i = 0; i < lowered_.workload.requests.size(); ++i) {
      replayer.Run(i);
      if (log.entries.empty()) continue;
      for (const ReplayLog::Entry& entry : log.entries) Note(entry, i);
      if (std::exchange(held_changed_, false)) held_.Settle(static_cast<Position>(i));
      log.entries.clear();
    }
  }

 private:
  void Note(const ReplayLog::Entry& entry, std::size_t index) {
    const Request& request = lowered_.workload.requests[index];
    const auto at = static_cast<Position>(index);
    switch (entry.what) {
      case ReplayLog::What::kMemory:
        held_changed_ = true;
        return held_.Add({.address = entry.address,
                          .size = entry.size,
                          .stream = request.stream,
                          .pool = request.pool,
                          .expandable = rules_.settings.expandable_segments});
      case ReplayLog::What::kMemoryGone:
        held_changed_ = true;
        return held_.Remove(entry.address, entry.size);
      case ReplayLog::What::kBlock:
        return Begin(entry, request.allocation, at);
      case ReplayLog::What::kBlockGone: {
        HistoryBlock& block = history_.blocks[block_of_[request.allocation]];
        block.released = block.freed = End(request, index);
        return;
      }
    }
  }
  /// What is borrowed comes and goes with one request, and is there at it.
  Position End(const Request& request, std::size_t index) const {
    const std::size_t end = request.passes() ? index + 1 : index;
    return end < lowered_.workload.requests.size() ? static_cast<Position>(end) : kNotYet;
  }
  void Begin(const ReplayLog::Entry& entry, std::uint32_t allocation, Position at) {
    const LoweredBlock& lowered = lowered_.blocks[allocation];
    const Origin origin = origins_.Of(lowered);
    block_of_[allocation] = history_.blocks.size();
    history_.blocks.push_back({.address = entry.address,
                               .requested = lowered.requested,
                               .size = entry.size,
                               .made = at,
                               .category = static_cast<std::uint8_t>(lowered.category),
                               .node = origin.node,
                               .place = origin.place,
                               .module = origin.module});
  }

  const Lowered& lowered_;
  const AllocatorRules& rules_;
  const DeviceLimits limits_;
  Origins& origins_;
  History& history_;
  HeldSpans held_;
  bool held_changed_ = false;
  /// By allocation.
  std::vector<std::size_t> block_of_;
};

std::optional<Stage> MarkOf(Stage stage) {
  switch (stage) {
    case Stage::kForward:
      return Stage::kForward;
    case Stage::kBackward:
      return Stage::kBackward;
    case Stage::kOptimizer:
      return Stage::kOptimizer;
    default:
      return std::nullopt;
  }
}

/// Calls `mark` for each longest stretch of moments that are alike.
template <typename Alike, typename Mark>
void ForEachStretch(const std::vector<Moment>& moments, Alike alike, Mark mark) {
  for (std::size_t first = 0, next = 0; first < moments.size(); first = next) {
    while (next < moments.size() && alike(moments[first], moments[next])) ++next;
    mark(moments[first], static_cast<Position>(first), static_cast<Position>(next - 1));
  }
}

void AddMarks(const std::vector<Moment>& moments, History& history) {
  const auto same_step = [](const Moment& a, const Moment& b) {
    return a.step == b.step && a.part == b.part;
  };
  const auto same_phase = [&](const Moment& a, const Moment& b) {
    return same_step(a, b) && a.stage == b.stage;
  };
  const auto number = [](const Moment& moment) {
    return moment.part == Moment::kSteps ? moment.step + 1 : HistoryMark::kAfterSteps;
  };
  ForEachStretch(moments, same_step, [&](const Moment& moment, Position first, Position last) {
    if (moment.step < 0 || number(moment) == HistoryMark::kAfterSteps) return;
    history.marks.push_back({Stage::kStep, first, last, number(moment)});
  });
  ForEachStretch(moments, same_phase, [&](const Moment& moment, Position first, Position last) {
    const std::optional<Stage> kind = MarkOf(moment.stage);
    if (!kind || moment.step < 0) return;
    history.marks.push_back({*kind, first, last, number(moment)});
  });
}

void AddStretches(const Trial& trial, History& history) {
  const auto same_part = [](const Moment& a, const Moment& b) {
    return PartPeaks::IndexOf(a) == PartPeaks::IndexOf(b);
  };
  ForEachStretch(
      trial.lowered().moments, same_part, [&](const Moment& moment, Position first, Position last) {
        const std::size_t part = PartPeaks::IndexOf(moment);
        history.stretches.push_back(
            {.stage = StageOfPart(trial, part), .first = first, .last = last, .part = part});
      });
}

}  // namespace

History PredictedHistory(const Trial& trial) {
  const Lowered& lowered = trial.lowered();
  History history;
  history.has_spans = true;
  history.times.assign(lowered.workload.requests.size(), 0);
  for (std::size_t p = 0; p < kCategoryCount; ++p) {
    history.categories.emplace_back(CategoryName(static_cast<Category>(p)));
  }
  const Setting& setting = trial.setting();
  Origins origins(*setting.job, setting.variant(), history);
  Recorder(lowered, setting.rules, trial.shown().limits, origins, history).Run();
  AddMarks(lowered.moments, history);
  AddStretches(trial, history);
  return history;
}

}  // namespace plimsoll

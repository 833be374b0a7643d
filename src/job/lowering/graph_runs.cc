#include "job/lowering/graph_runs.h"

#include <algorithm>
#include <string_view>
#include <variant>

namespace plimsoll {
namespace {

constexpr std::string_view kGraph = "inductor.graph";
constexpr std::string_view kGraphEnd = "inductor.graph_end";

void AddUses(const Argument& argument, std::size_t event,
             std::unordered_map<Storage, std::size_t>& uses) {
  if (const auto* use = std::get_if<TensorUse>(&argument.is)) uses[use->storage] = event;
  if (const auto* list = std::get_if<Argument::List>(&argument.is)) {
    for (const Argument& element : *list) AddUses(element, event, uses);
  }
}

}  // namespace

bool GraphRuns::BeginsGeneration(GraphRegion::Kind kind) const {
  if (generation_ == 0 || kind == GraphRegion::Kind::kInference) return true;
  return kind == GraphRegion::Kind::kForward && last_ != GraphRegion::Kind::kForward;
}

GraphRun GraphRuns::Begin(const GraphRegion& region) {
  if (BeginsGeneration(region.kind)) {
    ++generation_;
    warms_up_ = false;
  }
  last_ = region.kind;
  const auto [found, added] = recorded_.emplace(region.graph, 0);
  warms_up_ |= added;
  if (warms_up_) return GraphRun::kWarmUp;
  // Each run of the same generation has a place of its own behind those before it.
  if (found->second == 0) found->second = generation_;
  return found->second == generation_ ? GraphRun::kRecording : GraphRun::kReplay;
}

bool HasGraphs(const Job& job, const Variant& variant) {
  return std::ranges::any_of(
      variant.calls, [&](const CallRecord& call) { return job.strings[call.op] == kGraph; });
}

std::unordered_map<Storage, std::size_t> LastUsesInGraphs(const Job& job, const Variant& variant,
                                                          const std::vector<JobEvent>& events,
                                                          std::size_t begin, std::size_t end) {
  std::unordered_map<Storage, std::size_t> uses;
  bool inside = false;
  for (std::size_t i = begin; i < end; ++i) {
    if (events[i].kind != JobEvent::Kind::kCall) continue;
    const CallRecord& call = variant.calls[events[i].index];
    const std::string_view op = job.strings[call.op];
    if (op == kGraph) inside = true;
    if (op == kGraphEnd) inside = false;
    if (!inside) continue;
    for (const Argument& argument : call.args) AddUses(argument, i, uses);
  }
  return uses;
}

}  // namespace plimsoll

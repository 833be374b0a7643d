// Where compiled regions begin and end that run as CUDA graphs.
#include <array>
#include <variant>

#include "job/rules/rules.h"

namespace plimsoll {
namespace {

GraphRegion::Kind KindOf(const Call& call) {
  if (call.BoolOf(call.Keyword("backward"), false)) return GraphRegion::Kind::kBackward;
  if (call.BoolOf(call.Keyword("inference"), false)) return GraphRegion::Kind::kInference;
  return GraphRegion::Kind::kForward;
}

/// inductor.graph(the inputs whose place may change, …, graph=1, backward=False)
void GraphBegins(const Call& call, Emitter& emit) {
  GraphRegion region{.kind = KindOf(call)};
  const Argument* graph = call.Keyword("graph");
  if (const auto* number = graph ? std::get_if<Number>(&graph->is) : nullptr) {
    region.graph = number->least();
  }
  for (std::size_t i = 0; i < call.args(); ++i) {
    if (const auto moving = call.TensorArg(i)) region.moving.push_back(*moving);
  }
  emit.UseGraph(&region);
}

void GraphEnds(const Call&, Emitter& emit) { emit.UseGraph(nullptr); }

constexpr std::array kGraphRules = std::to_array<RuleEntry>({
    {"graph", GraphBegins},
    {"graph_end", GraphEnds},
});

}  // namespace

std::span<const RuleEntry> GraphRules() { return kGraphRules; }

}  // namespace plimsoll

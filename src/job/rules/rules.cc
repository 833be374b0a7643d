#include "job/rules/rules.h"

#include <unordered_map>

namespace plimsoll {
namespace {

using Table = std::unordered_map<std::string_view, OperatorFacts>;

Table Build() {
  Table table;
  for (const std::string_view name : PlainOperators()) table[name] = {.known = true};
  for (const auto& rules : {AttentionRules(), ConvolutionRules(), MatrixRules(), ReductionRules(),
                            NormalizationRules(), IndexingRules(), RecurrentRules(),
                            FastPathRules(), GraphRules(), LinearAlgebraRules(), OtherRules()}) {
    for (const RuleEntry& entry : rules) table[entry.name] = {.rule = entry.rule, .known = true};
  }
  return table;
}

}  // namespace

OperatorFacts FactsOf(std::string_view op) {
  static const Table table = Build();
  const std::string_view name = BaseName(op);
  if (const auto found = table.find(name); found != table.end()) return found->second;
  // What works in place makes nothing, and neither do the lists of an optimizer's foreach kernels
  // beyond their results.
  const bool in_place = name.size() > 1 && name.ends_with('_') && !name.ends_with("__");
  const bool of_lists = name.starts_with("_foreach_") || name.starts_with("_fused_ad") ||
                        name.starts_with("_fused_sgd");
  return {.known = in_place || of_lists};
}

}  // namespace plimsoll

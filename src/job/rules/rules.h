// The table of all rules: what each operator really allocates, where a capture cannot see it.
#pragma once

#include <span>
#include <string_view>

#include "job/calls/emitter.h"

namespace plimsoll {

/// What is known about an operator.
struct OperatorFacts {
  /// Null: its results and nothing else.
  Rule rule = nullptr;
  /// False: nothing was measured, so that its results alone are an assumption.
  bool known = false;
};

/// `op` is the name with its overload: "aten.mm.default".
OperatorFacts FactsOf(std::string_view op);

// One function a kind, each in the file of its name.
struct RuleEntry {
  /// Without namespace and overload: "mm".
  std::string_view name;
  Rule rule;
};
std::span<const RuleEntry> AttentionRules();
std::span<const RuleEntry> ConvolutionRules();
std::span<const RuleEntry> MatrixRules();
std::span<const RuleEntry> ReductionRules();
std::span<const RuleEntry> NormalizationRules();
std::span<const RuleEntry> IndexingRules();
std::span<const RuleEntry> RecurrentRules();
std::span<const RuleEntry> FastPathRules();
std::span<const RuleEntry> GraphRules();
std::span<const RuleEntry> LinearAlgebraRules();
std::span<const RuleEntry> OtherRules();
/// Measured, and found to allocate their results only.
std::span<const std::string_view> PlainOperators();

}  // namespace plimsoll

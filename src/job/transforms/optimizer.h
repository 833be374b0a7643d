// Another optimizer than the captured one: its state and its temporaries take the place of what the
// capture saw.
#pragma once

#include <string>

#include "base/result.h"
#include "job/file/job.h"
#include "job/transforms/optimizer_kind.h"

namespace plimsoll {

/// What the capture was made with, as far as its calls tell.
struct CapturedOptimizer {
  /// "adam", "adamw", "sgd", "sgd_momentum"; empty where it is another.
  std::string name;
  bool fused = false;
};
CapturedOptimizer OptimizerOf(const Job& job, const Variant& variant);

/// Whether an optimizer behind the captured steps updates parameters that they do not update, or by
/// other operators: a script that unfreezes its model, or changes its optimizer.
bool TrainsOtherwiseLater(const Job& job, const Variant& variant);

/// Why an optimizer cannot step inside the backward: gradients are used between the two. Empty if
/// it can.
std::string WhyNotInBackward(const Job& job, const Variant& variant);

/// The variant with another optimizer. Adds to the step's strings and layouts.
Result<Variant> ReplaceOptimizer(Job& job, const Variant& variant, const OtherOptimizer& optimizer);

}  // namespace plimsoll

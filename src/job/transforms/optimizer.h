// Another optimizer than the captured one: its state and its temporaries take the place of what the
// capture saw.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "job/file/job.h"

namespace plimsoll {

/// The names that ReplaceOptimizer knows.
std::vector<std::string_view> OptimizerNames();

/// What the capture was made with, as far as its calls tell.
struct CapturedOptimizer {
  /// "adam", "adamw", "sgd", "sgd_momentum"; empty where it is another.
  std::string name;
  bool fused = false;
};
CapturedOptimizer OptimizerOf(const Job& job, const Variant& variant);

/// The variant with `name` ("adamw", "sgd", "adam8bit", "adamw:fused", "adam:for", "adam:host") as
/// its optimizer; with ":in_backward", each parameter is updated when its gradient is complete.
/// Adds to the step's strings and layouts.
Result<Variant> ReplaceOptimizer(Job& job, const Variant& variant, std::string_view name);

}  // namespace plimsoll

// Who reads or changes gradients between a backward and the optimizer's step: clipping, a gradient
// scaler, norms that are logged. Gradients have to be there until then.
#pragma once

#include <string>
#include <vector>

#include "job/file/job.h"

namespace plimsoll {

struct GradientUse {
  /// "train.py:57 in main"
  std::string at;
  /// A gradient scaler unscales them there, and nothing else happens to them.
  bool by_scaler = false;
};

/// Every line of the script that does so, in their order. Older captures: the first one.
std::vector<GradientUse> GradientUsesOf(const Job& job, const Variant& variant);

/// The first line of the script that does so, "train.py:57 in main"; empty if none does. Captures
/// tell it. In files of older ones the events decide, and what is unclear counts as a use.
std::string GradientsUsedAt(const Job& job, const Variant& variant);

}  // namespace plimsoll

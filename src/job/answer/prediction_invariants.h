// What must hold of every prediction, whatever was predicted.
#pragma once

#include <string>
#include <vector>

#include "job/answer/predict.h"

namespace plimsoll {

/// The invariants that do not hold, each as a sentence; empty if all do.
std::vector<std::string> BrokenInvariants(const Prediction& prediction);

}  // namespace plimsoll

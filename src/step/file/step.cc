#include "step/file/step.h"

namespace plimsoll {

std::string_view PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kModel:
      return "model";
    case Phase::kInputs:
      return "inputs";
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kOptimizer:
      return "optimizer";
    case Phase::kOther:
      return "other";
  }
  return "other";
}

}  // namespace plimsoll

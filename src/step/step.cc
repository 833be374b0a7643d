#include "step/step.h"

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

std::string_view PurposeName(Purpose purpose) {
  switch (purpose) {
    case Purpose::kParameters:
      return "parameters";
    case Purpose::kGradients:
      return "gradients";
    case Purpose::kOptimizerState:
      return "optimizer_state";
    case Purpose::kActivations:
      return "activations";
    case Purpose::kInputs:
      return "inputs";
    case Purpose::kTemporaries:
      return "temporaries";
    case Purpose::kWorkspaces:
      return "workspaces";
  }
  return "temporaries";
}

}  // namespace plimsoll

#include "timeline/stage.h"

namespace plimsoll {

std::string_view StageName(Stage stage) {
  switch (stage) {
    case Stage::kUnknown:
      return "other";
    case Stage::kLoad:
      return "load";
    case Stage::kBuild:
      return "model";
    case Stage::kTransfer:
      return "inputs";
    case Stage::kStep:
      return "step";
    case Stage::kForward:
      return "forward";
    case Stage::kLoss:
      return "loss";
    case Stage::kBackward:
      return "backward";
    case Stage::kAllGather:
      return "all-gather";
    case Stage::kOptimizer:
      return "optimizer";
    case Stage::kEvaluation:
      return "evaluation";
    case Stage::kPrompt:
      return "prompt";
    case Stage::kGeneration:
      return "generation";
    case Stage::kSave:
      return "save";
  }
  return "other";
}

}  // namespace plimsoll

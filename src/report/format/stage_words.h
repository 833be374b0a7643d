// Stages in the words of those who train.
#pragma once

#include <string_view>

#include "timeline/stage.h"

namespace plimsoll {

/// "building the model"; the name that files have where people say it no other way.
inline std::string_view StageWords(Stage stage) {
  switch (stage) {
    case Stage::kBuild:
      return "building the model";
    case Stage::kStep:
      return "training";
    case Stage::kEvaluation:
      return "evaluation";
    case Stage::kPrompt:
      return "the prompt";
    case Stage::kGeneration:
      return "generation";
    case Stage::kSave:
      return "saving";
    case Stage::kLoad:
      return "loading a checkpoint";
    default:
      return StageName(stage);
  }
}

}  // namespace plimsoll

// A choice as the run that is predicted for it.
#pragma once

#include "plan/choice.h"

namespace plimsoll {

struct PlannedRun {
  Step step;
  PredictOptions options;
  /// Of each step of the optimizer; the choice may have more, which only repeat the last.
  int passes = 1;
};

Result<PlannedRun> RunOf(const PlanJob& job, const Choice& choice);

}  // namespace plimsoll

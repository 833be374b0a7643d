// A choice as the run that is predicted for it.
#pragma once

#include "plan/choice.h"

namespace plimsoll {

/// After the second pass nothing new happens to memory, and each further one takes as long.
inline constexpr int kPassesRun = 2;
int PassesRun(const Choice& choice);

/// The same choice in so many passes of the same batch.
Choice WithPasses(const Choice& choice, int passes);

/// The job's step in the precision of the choice, and in no other, rewritten as the choice says.
Result<Job> JobOf(const PlanRequest& request, const Choice& choice);
/// How that step is predicted.
Result<PredictOptions> OptionsOf(const PlanRequest& request, const Choice& choice);

struct PlannedRun {
  Setting setting;
  /// Of each step of the optimizer; the choice may have more, which only repeat the last.
  int passes = 1;
};

Result<PlannedRun> RunOf(const PlanRequest& request, const Choice& choice);

}  // namespace plimsoll

// A choice as the run that is predicted for it.
#pragma once

#include "plan/choice.h"

namespace plimsoll {

/// How many micro-batches of a step are run. After the second one nothing new happens to memory,
/// and each further one takes as long. Those of the capture are all run.
int MicroBatchesRun(const Job& job, const Choice& choice);

/// The job's step in the precision of the choice, and in no other, rewritten as the choice says:
/// what `predict` and `plan` show figures of.
Result<Job> JobOf(const Job& job, const Choice& choice);
/// The run of that, with every micro-batch.
Result<Setting> SettingOf(const PlanRequest& request, const Choice& choice);
/// How that step is predicted.
Result<PredictOptions> OptionsOf(const PlanRequest& request, const Choice& choice);

struct PlannedRun {
  Setting setting;
  /// Micro-batches in each step; the choice may have more, which repeat the last.
  int micro_batches = 1;
};

Result<PlannedRun> RunOf(const PlanRequest& request, const Choice& choice);

}  // namespace plimsoll

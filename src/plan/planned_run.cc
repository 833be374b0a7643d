#include "plan/planned_run.h"

#include <algorithm>

#include "plan/evaluate.h"
#include "plan/lever.h"

namespace plimsoll {

Result<PlannedRun> RunOf(const PlanJob& job, const Choice& choice) {
  PredictOptions options = job.options;
  if (const std::optional<Error> error = Configure(options, choice)) return *error;
  options.batch = choice.batch;
  // The rewritten step has one precision: that of the choice.
  options.precision.reset();
  const Result<std::size_t> variant = VariantFor(job.step, choice);
  if (!variant) return variant.error();
  PlannedRun run{.step = CopyOf(job.step, *variant),
                 .options = std::move(options),
                 .passes = std::min(PassesOf(choice), kPassesRun)};
  const Choice shorter = choice.With(kAccumulationLever.name,
                                     run.passes > 1 ? std::to_string(run.passes) : std::string());
  if (const std::optional<Error> error = Rewrite(run.step, shorter)) return *error;
  return run;
}

}  // namespace plimsoll

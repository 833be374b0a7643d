#include "plan/planned_run.h"

#include <algorithm>

#include "plan/lever.h"

namespace plimsoll {
namespace {

/// After the second pass nothing new happens to memory.
constexpr int kPassesRun = 2;

}  // namespace

Result<PlannedRun> RunOf(const PlanJob& job, const Choice& choice) {
  PredictOptions options = job.options;
  if (const std::optional<Error> error = Configure(options, choice)) return *error;
  options.batch = choice.batch;
  const Result<const Variant*> variant = ChooseVariant(job.step, options);
  if (!variant) return variant.error();
  PlannedRun run{.step = CopyOf(job.step, std::size_t(*variant - job.step.variants.data())),
                 .options = std::move(options),
                 .passes = std::min(PassesOf(choice), kPassesRun)};
  const Choice shorter = choice.With(kAccumulationLever.name,
                                     run.passes > 1 ? std::to_string(run.passes) : std::string());
  if (const std::optional<Error> error = Rewrite(run.step, shorter)) return *error;
  return run;
}

}  // namespace plimsoll

#include "plan/planned_run.h"

#include <algorithm>

#include "plan/lever.h"

namespace plimsoll {

int PassesRun(const Choice& choice) { return std::min(PassesOf(choice), kPassesRun); }

Choice WithPasses(const Choice& choice, int passes) {
  if (passes == 1) return choice.Without(kAccumulationLever.name);
  return choice.With(kAccumulationLever.name, PassesValue(passes));
}

Result<Job> JobOf(const PlanRequest& request, const Choice& choice) {
  const Result<std::size_t> variant = VariantFor(request.job, choice);
  if (!variant) return variant.error();
  Job job = CopyOf(request.job, *variant);
  if (const std::optional<Error> error = Rewrite(job, choice)) return *error;
  return job;
}

Result<PredictOptions> OptionsOf(const PlanRequest& request, const Choice& choice) {
  PredictOptions options = request.options;
  if (const std::optional<Error> error = Configure(options, choice)) return *error;
  options.batch = choice.batch;
  // The rewritten step has one precision: that of the choice.
  options.precision.reset();
  return options;
}

Result<PlannedRun> RunOf(const PlanRequest& request, const Choice& choice) {
  const int passes = PassesRun(choice);
  Result<Job> job = JobOf(request, WithPasses(choice, passes));
  if (!job) return job.error();
  const Result<PredictOptions> options = OptionsOf(request, choice);
  if (!options) return options.error();
  Result<Setting> setting =
      MakeSetting(std::make_shared<const Job>(std::move(*job)), request.gpu, *options);
  if (!setting) return setting.error();
  return PlannedRun{.setting = std::move(*setting), .passes = passes};
}

}  // namespace plimsoll

#include "plan/planned_run.h"

#include <algorithm>

#include "plan/lever.h"

namespace plimsoll {

int PassesRun(const Choice& choice) { return std::min(PassesOf(choice), kPassesRun); }

Choice WithPasses(const Choice& choice, int passes) {
  return choice.With(kAccumulationLever.name, passes > 1 ? std::to_string(passes) : "");
}

Result<Step> StepOf(const PlanJob& job, const Choice& choice) {
  const Result<std::size_t> variant = VariantFor(job.step, choice);
  if (!variant) return variant.error();
  Step step = CopyOf(job.step, *variant);
  if (const std::optional<Error> error = Rewrite(step, choice)) return *error;
  return step;
}

Result<PredictOptions> OptionsOf(const PlanJob& job, const Choice& choice) {
  PredictOptions options = job.options;
  if (const std::optional<Error> error = Configure(options, choice)) return *error;
  options.batch = choice.batch;
  // The rewritten step has one precision: that of the choice.
  options.precision.reset();
  return options;
}

Result<PlannedRun> RunOf(const PlanJob& job, const Choice& choice) {
  const int passes = PassesRun(choice);
  Result<Step> step = StepOf(job, WithPasses(choice, passes));
  if (!step) return step.error();
  const Result<PredictOptions> options = OptionsOf(job, choice);
  if (!options) return options.error();
  Result<Setting> setting =
      MakeSetting(std::make_shared<const Step>(std::move(*step)), job.gpu, *options);
  if (!setting) return setting.error();
  return PlannedRun{.setting = std::move(*setting), .passes = passes};
}

}  // namespace plimsoll

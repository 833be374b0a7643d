#include "plan/planned_run.h"

#include <algorithm>

#include "plan/lever.h"

namespace plimsoll {

namespace {

constexpr int kMostRun = 2;

}  // namespace

int MicroBatchesRun(const Job& job, const Choice& choice) {
  const int all = MicroBatchesOf(job, choice);
  return choice.Sets(kAccumulationLever.name) ? std::min(all, kMostRun) : all;
}

Result<Job> JobOf(const Job& job, const Choice& choice) {
  const Result<std::size_t> variant = VariantFor(job, choice);
  if (!variant) return variant.error();
  Job changed = CopyOf(job, *variant);
  if (const std::optional<Error> error = Rewrite(changed, choice)) return *error;
  return changed;
}

Result<Setting> SettingOf(const PlanRequest& request, const Choice& choice) {
  Result<Job> job = JobOf(request.job, choice);
  if (!job) return job.error();
  const Result<PredictOptions> options = OptionsOf(request, choice);
  if (!options) return options.error();
  return MakeSetting(std::make_shared<const Job>(std::move(*job)), request.gpu, *options);
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
  const int run = MicroBatchesRun(request.job, choice);
  Result<Setting> setting = SettingOf(request, WithMicroBatches(request.job, choice, run));
  if (!setting) return setting.error();
  return PlannedRun{.setting = std::move(*setting), .micro_batches = run};
}

}  // namespace plimsoll

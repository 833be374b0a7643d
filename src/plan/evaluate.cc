#include "plan/evaluate.h"

#include <fmt/format.h>

#include <algorithm>

#include "plan/lever.h"
#include "step/time/step_time.h"

namespace plimsoll {
namespace {

/// After the second pass nothing new happens to memory, and each further one takes as long.
constexpr int kPassesRun = 2;

struct Applied {
  Changes changes;
  PredictOptions options;
};

Applied ApplyAll(const PlanJob& job, const Choice& choice) {
  Applied applied{.changes = {}, .options = job.options};
  for (const PlanLever* lever : PlanLevers()) {
    lever->apply(job, choice, applied.changes, applied.options);
  }
  return applied;
}

}  // namespace

Result<Evaluator::Changed> Evaluator::StepFor(const Choice& choice, int passes) {
  Changes changes = ApplyAll(job_, choice).changes;
  changes.accumulate = passes;
  const std::string key =
      fmt::format("{}|{}|{}|{}|{}", choice.variant, changes.checkpoint.value_or(""),
                  changes.optimizer.value_or(""), changes.tf32.value_or(false), passes);
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = steps_.find(key); found != steps_.end()) return found->second;
  }
  auto step = std::make_shared<Step>(CopyOf(job_.step, choice.variant));
  if (const std::optional<Error> error = Apply(*step, changes)) return *error;
  const std::lock_guard lock(mutex_);
  steps_[key] = step;
  return Changed(step);
}

Result<Outcome> Evaluator::Evaluate(const Choice& choice) {
  PredictOptions options = ApplyAll(job_, choice).options;
  options.batch = choice.batch;
  const int passes = std::min(choice.passes, kPassesRun);
  const Result<Changed> step = StepFor(choice, passes);
  if (!step) return step.error();
  const Result<Prediction> p = Predict(**step, job_.gpu, options);
  if (!p) return p.error();
  Outcome outcome{.choice = choice,
                  .peak = p->device.best,
                  .high = p->device.high,
                  .room = p->room,
                  .fits = p->fits,
                  .surely_fits = p->surely_fits,
                  .step_us = p->step_us,
                  .gpu_busy_us = p->gpu_busy_us};
  if (choice.passes > passes) {
    const Result<Changed> one = StepFor(choice, 1);
    if (!one) return one.error();
    const StepDuration first = StepTime(**one, (*one)->variants.front(), job_.gpu, choice.batch);
    const double further = choice.passes - passes;
    outcome.step_us += further * (p->step_us - first.us);
    outcome.gpu_busy_us += further * (p->gpu_busy_us - first.gpu.us);
  }
  const std::lock_guard lock(mutex_);
  ++evaluations_;
  return outcome;
}

}  // namespace plimsoll

#include "plan/evaluate.h"

#include <fmt/format.h>

#include <algorithm>

#include "plan/lever.h"
#include "plan/planned_run.h"
#include "step/fit.h"

namespace plimsoll {
namespace {

/// The part of a choice that makes another step of it; all of it where `whole`.
std::string KeyOf(const Choice& choice, bool whole) {
  std::string key;
  for (const PlanLever* lever : LeversOf(choice)) {
    if (whole || lever->rewrite != nullptr || lever == &kPrecisionLever) {
      key += fmt::format("{}={};", lever->name, choice.Get(lever->name));
    }
  }
  return whole ? fmt::format("{}|{}", choice.batch, key) : key;
}

}  // namespace

Result<Evaluator::Steps> Evaluator::Rewritten(const Choice& choice) const {
  Result<Step> step = StepOf(job_, choice);
  if (!step) return step.error();
  const auto one = std::make_shared<const Step>(std::move(*step));
  return Steps{.one = one, .run = one};
}

// Of all levers this one rewrites last: what the others make of the step is not made again.
Result<Evaluator::Steps> Evaluator::InPasses(const Changed& one, const Choice& choice) const {
  if (std::optional<Error> error = Contradiction(choice)) return *error;
  Step step = CopyOf(*one, 0);
  const Choice passes = WithPasses({}, PassesRun(choice));
  if (std::optional<Error> error = Rewrite(step, passes)) return *error;
  return Steps{.one = one, .run = std::make_shared<const Step>(std::move(step))};
}

Result<Evaluator::Steps> Evaluator::StepsFor(const Choice& choice) {
  const auto make = [&]() -> Result<Steps> {
    if (PassesOf(choice) == 1) return Rewritten(choice);
    const Result<Steps> one = StepsFor(WithPasses(choice, 1));
    return one ? InPasses(one->one, choice) : one;
  };
  // Sets of blocks are many, and hardly one is asked for again.
  if (!choice.Get(kCheckpointingLever.name).empty()) return make();
  return steps_.Get(KeyOf(WithPasses(choice, PassesRun(choice)), false), make);
}

Result<Outcome> Evaluator::Evaluate(const Choice& choice) {
  return outcomes_.Get(KeyOf(choice, true), [&] { return EvaluateAnew(choice); });
}

StepDuration Evaluator::TimeOf(const Step& step, std::int64_t batch) const {
  return StepTime(step, step.variants.front(), job_.gpu, batch, {}, MeasuredHost(),
                  job_.options.cluster);
}

Result<Outcome> Evaluator::EvaluateAnew(const Choice& choice) {
  const Result<PredictOptions> options = OptionsOf(job_, choice);
  if (!options) return options.error();
  const Result<Steps> steps = StepsFor(choice);
  if (!steps) return steps.error();
  const Result<Fit> fit = FitOf(*steps->run, job_.gpu, *options);
  if (!fit) return fit.error();
  const Bytes device = fit->reserved + job_.gpu.context.bytes;
  Outcome outcome{.choice = choice,
                  .samples = SamplesOf(job_.step, choice),
                  .reserved = {fit->reserved, fit->reserved, fit->reserved},
                  .device = {device, device, device},
                  .in_use = fit->in_use,
                  .room = fit->room,
                  .fits = fit->fits,
                  .surely_fits = fit->surely_fits && fit->unlimited <= fit->room,
                  .step_us = fit->step_us,
                  .gpu_busy_us = fit->gpu_busy_us};
  if (const double further = PassesOf(choice) - PassesRun(choice); further > 0) {
    const StepDuration first = TimeOf(*steps->one, choice.batch);
    outcome.step_us += further * (fit->step_us - first.us);
    outcome.gpu_busy_us += further * (fit->gpu_busy_us - first.gpu.us);
  }
  return outcome;
}

Result<Outcome> Evaluator::EvaluateWhole(const Choice& choice) {
  Result<Outcome> outcome = Evaluate(choice);
  if (!outcome) return outcome;
  const Result<PredictOptions> options = OptionsOf(job_, choice);
  if (!options) return options.error();
  const Result<Steps> steps = StepsFor(choice);
  if (!steps) return steps.error();
  const Result<Prediction> prediction = Predict(*steps->run, job_.gpu, *options);
  if (!prediction) return prediction.error();
  outcome->reserved = prediction->reserved;
  outcome->device = prediction->device;
  outcome->whole = true;
  return outcome;
}

Result<double> Evaluator::StepMicroseconds(const Choice& choice) {
  const std::string key = fmt::format("{}|{}", choice.batch, KeyOf(choice, false));
  return times_.Get(key, [&] { return TimeAnew(choice); });
}

Result<double> Evaluator::TimeAnew(const Choice& choice) {
  const Result<Steps> steps = StepsFor(choice);
  if (!steps) return steps.error();
  const double us = TimeOf(*steps->run, choice.batch).us;
  const int further = PassesOf(choice) - PassesRun(choice);
  if (further == 0) return us;
  return us + further * (us - TimeOf(*steps->one, choice.batch).us);
}

}  // namespace plimsoll

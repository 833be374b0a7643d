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

Result<Evaluator::Changed> Evaluator::StepFor(const Choice& choice, int passes) {
  const Choice shorter = WithPasses(choice, passes);
  const std::string key = KeyOf(shorter, false);
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = steps_.find(key); found != steps_.end()) return found->second;
  }
  Result<Step> rewritten = StepOf(job_, shorter);
  if (!rewritten) return rewritten.error();
  auto step = std::make_shared<const Step>(std::move(*rewritten));
  // Sets of blocks are many, and hardly one is asked for again.
  if (!choice.Get(kCheckpointingLever.name).empty()) return Changed(step);
  const std::lock_guard lock(mutex_);
  steps_[key] = step;
  return Changed(step);
}

Result<Outcome> Evaluator::Evaluate(const Choice& choice) {
  const std::string key = KeyOf(choice, true);
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = outcomes_.find(key); found != outcomes_.end()) return found->second;
  }
  Result<Outcome> outcome = EvaluateAnew(choice);
  if (!outcome) return outcome;
  const std::lock_guard lock(mutex_);
  outcomes_[key] = *outcome;
  return outcome;
}

StepDuration Evaluator::TimeOf(const Step& step, std::int64_t batch) const {
  return StepTime(step, step.variants.front(), job_.gpu, batch, {}, MeasuredHost(),
                  job_.options.cluster);
}

Result<Outcome> Evaluator::EvaluateAnew(const Choice& choice) {
  const Result<PredictOptions> options = OptionsOf(job_, choice);
  if (!options) return options.error();
  const int passes = std::min(PassesOf(choice), kPassesRun);
  const Result<Changed> step = StepFor(choice, passes);
  if (!step) return step.error();
  const Result<Fit> fit = FitOf(**step, job_.gpu, *options);
  if (!fit) return fit.error();
  const Bytes device = fit->reserved + job_.gpu.context.bytes;
  Outcome outcome{.choice = choice,
                  .samples = SamplesOf(choice),
                  .reserved = {fit->reserved, fit->reserved, fit->reserved},
                  .device = {device, device, device},
                  .room = fit->room,
                  .fits = fit->fits,
                  .surely_fits = fit->surely_fits && fit->unlimited <= fit->room,
                  .step_us = fit->step_us,
                  .gpu_busy_us = fit->gpu_busy_us};
  if (PassesOf(choice) > passes) {
    const Result<Changed> one = StepFor(choice, 1);
    if (!one) return one.error();
    const StepDuration first = TimeOf(**one, choice.batch);
    const double further = PassesOf(choice) - passes;
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
  const Result<Changed> step = StepFor(choice, std::min(PassesOf(choice), kPassesRun));
  if (!step) return step.error();
  const Result<Prediction> prediction = Predict(**step, job_.gpu, *options);
  if (!prediction) return prediction.error();
  outcome->reserved = prediction->reserved;
  outcome->device = prediction->device;
  outcome->whole = true;
  return outcome;
}

Result<double> Evaluator::StepMicroseconds(const Choice& choice) {
  const auto of = [&](int passes) -> Result<double> {
    const Result<Changed> step = StepFor(choice, passes);
    if (!step) return step.error();
    return TimeOf(**step, choice.batch).us;
  };
  const int passes = PassesOf(choice);
  const Result<double> some = of(std::min(passes, kPassesRun));
  if (!some || passes <= kPassesRun) return some;
  const Result<double> one = of(1);
  if (!one) return one;
  return *some + (passes - kPassesRun) * (*some - *one);
}

}  // namespace plimsoll

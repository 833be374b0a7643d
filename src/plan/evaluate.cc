#include "plan/evaluate.h"

#include <fmt/format.h>

#include <algorithm>

#include "job/answer/predict.h"
#include "plan/lever.h"
#include "plan/planned_run.h"

namespace plimsoll {
namespace {

/// Rewritten steps of more events than this are not kept: a hundred of them would take about 300
/// MB.
constexpr std::size_t kMostEventsKept = 20'000;
constexpr std::size_t kMostEventsOnTwoThreads = 200'000;

/// The part of a choice that makes another step of it; all of it where `whole`.
std::string KeyOf(const Choice& choice, bool whole) {
  std::string key;
  for (const auto& [lever, value] : LeversOf(choice)) {
    if (whole || lever->rewrite != nullptr || lever == &kPrecisionLever) {
      key += fmt::format("{}={};", lever->name, value->text());
    }
  }
  return whole ? fmt::format("{}|{}", choice.batch, key) : key;
}

/// A leak that no run lives to see is none.
std::optional<Growth> LeakOf(const Trial& trial) {
  std::optional<Growth> growth = FindGrowth(trial);
  return growth && growth->EndsTheJob() ? std::move(growth) : std::nullopt;
}

/// Of the stages of a pipeline for one another.
void AddWaiting(Way& way) {
  const double with_waiting = 1 + ShareOfWaiting(way.choice);
  for (double* us : {&way.trial.step_us, &way.trial.step_low_us, &way.trial.step_high_us}) {
    *us *= with_waiting;
  }
}

}  // namespace

Result<Evaluator::Changed> Evaluator::Rewritten(const Choice& choice) const {
  Result<Job> job = JobOf(request_.job, choice);
  if (!job) return job.error();
  return std::make_shared<const Job>(std::move(*job));
}

/// Every lever but the accumulation.
Result<Evaluator::Changed> Evaluator::JobFor(const Choice& choice) {
  // Sets of blocks are many, and hardly one is asked for again.
  if (IsLong() || choice.Sets(kCheckpointingLever.name)) return Rewritten(choice);
  return jobs_.Get(KeyOf(choice, false), [&] { return Rewritten(choice); });
}

// Of all levers accumulation rewrites last: what the others make of the step is not made again.
Result<Evaluator::Steps> Evaluator::Accumulated(const Choice& choice, int micro_batches) {
  if (std::optional<Error> error = Contradiction(choice)) return *error;
  const Result<Changed> base = JobFor(choice.Without(kAccumulationLever.name));
  if (!base) return base.error();
  const auto with = [&](int number) -> Result<Changed> {
    if (number == CapturedPasses(request_.job)) return *base;
    Job job = CopyOf(**base, 0);
    const Choice only = Choice{}.With(kAccumulationLever.name, MicroBatchesValue(number));
    if (std::optional<Error> error = Rewrite(job, only)) return *error;
    return std::make_shared<const Job>(std::move(job));
  };
  const Result<Changed> one = with(1);
  if (!one) return one.error();
  const Result<Changed> run = micro_batches == 1 ? one : with(micro_batches);
  if (!run) return run.error();
  return Steps{.one = *one, .run = *run, .micro_batches = micro_batches};
}

Result<Evaluator::Steps> Evaluator::StepsFor(const Choice& choice) {
  const int run = MicroBatchesRun(request_.job, choice);
  if (!choice.Sets(kAccumulationLever.name)) {
    const Result<Changed> job = JobFor(choice);
    if (!job) return job.error();
    return Steps{.one = *job, .run = *job, .micro_batches = run};
  }
  if (IsLong() || choice.Sets(kCheckpointingLever.name)) return Accumulated(choice, run);
  const Choice as_run = choice.With(kAccumulationLever.name, MicroBatchesValue(run));
  return accumulated_.Get(KeyOf(as_run, false), [&] { return Accumulated(as_run, run); });
}

Result<Setting> Evaluator::SettingFor(const Changed& job, const Choice& choice) const {
  const Result<PredictOptions> options = OptionsOf(request_, choice);
  if (!options) return options.error();
  return MakeSetting(job, request_.gpu, *options);
}

Result<Way> Evaluator::Evaluate(const Choice& choice) {
  return ways_.Get(KeyOf(choice, true), [&] { return EvaluateAnew(choice); });
}

Result<Way> Evaluator::EvaluateWhole(const Choice& choice) {
  return whole_.Get(KeyOf(choice, true), [&] { return EvaluateWholeAnew(choice); });
}

/// A change that leaves out a part of the job notes it there.
bool Evaluator::LeavesOutParts(const Trial& trial) const {
  return trial.setting().job->not_followed.size() > request_.job.not_followed.size();
}

Result<Way> Evaluator::EvaluateAnew(const Choice& choice) {
  const Result<Steps> steps = StepsFor(choice);
  if (!steps) return steps.error();
  Result<Setting> setting = SettingFor(steps->run, choice);
  if (!setting) return setting.error();
  const Result<Trial> trial = Trial::Of(std::move(*setting));
  if (!trial) return trial.error();
  Way way{.choice = choice,
          .samples = SamplesOf(request_.job, choice),
          .trial = trial->Best(),
          .work = trial->work() + WorkToTime(),
          .leaves_out_parts = LeavesOutParts(*trial)};
  work_ += way.work;
  const double further = MicroBatchesOf(request_.job, choice) - steps->micro_batches;
  if (further > 0) {
    const StepDuration first = DurationOf(trial->setting().WithStep(steps->one));
    way.trial.step_us += further * (way.trial.step_us - first.us);
    way.trial.step_low_us += further * (way.trial.step_low_us - first.low_us);
    way.trial.step_high_us += further * (way.trial.step_high_us - first.high_us);
    way.trial.gpu_busy_us += further * (way.trial.gpu_busy_us - first.gpu.us);
  }
  AddWaiting(way);
  return way;
}

Result<Way> Evaluator::EvaluateWholeAnew(const Choice& choice) {
  Result<Setting> setting = SettingOf(request_, choice);
  if (!setting) return setting.error();
  const Result<Trial> trial = Trial::Of(std::move(*setting));
  if (!trial) return trial.error();
  Way way{.choice = choice,
          .samples = SamplesOf(request_.job, choice),
          .trial = trial->WithRanges(),
          .work = trial->work(),
          .leak = LeakOf(*trial),
          .not_followed = NotFollowedBy(trial->setting()),
          .leaves_out_parts = LeavesOutParts(*trial)};
  work_ += way.work;
  AddWaiting(way);
  return way;
}

std::int64_t Evaluator::WorkOfWhole(const Way& way) const {
  const int all = MicroBatchesOf(request_.job, way.choice);
  // Ranges take about as much again.
  return 2 * way.work * all / MicroBatchesRun(request_.job, way.choice);
}

std::int64_t Evaluator::WorkToTime() const {
  const Variant& variant = request_.job.variants.front();
  const auto events = static_cast<std::int64_t>(variant.events.size());
  const auto calls = static_cast<std::int64_t>(variant.calls.size());
  // What is kept is written once for many.
  return IsLong() ? 8 * events + 40 * calls : 2 * events + 12 * calls;
}

bool Evaluator::IsLong() const {
  return request_.job.variants.front().events.size() > kMostEventsKept;
}

bool Evaluator::OutOfTime() const { return request_.out_of_time && request_.out_of_time(); }

unsigned Evaluator::Threads() const {
  if (!IsLong()) return 0;
  return request_.job.variants.front().events.size() > kMostEventsOnTwoThreads ? 1 : 2;
}

Result<double> Evaluator::StepMicroseconds(const Choice& choice) {
  const std::string key = fmt::format("{}|{}", choice.batch, KeyOf(choice, false));
  return times_.Get(key, [&] { return TimeAnew(choice); });
}

Result<double> Evaluator::TimeAnew(const Choice& choice) {
  work_ += WorkToTime();
  const Result<Steps> steps = StepsFor(choice);
  if (!steps) return steps.error();
  const Result<Setting> setting = SettingFor(steps->run, choice);
  if (!setting) return setting.error();
  const double us = DurationOf(*setting).us;
  const double with_waiting = 1 + ShareOfWaiting(choice);
  const int further = MicroBatchesOf(request_.job, choice) - steps->micro_batches;
  if (further == 0) return us * with_waiting;
  return with_waiting * (us + further * (us - DurationOf(setting->WithStep(steps->one)).us));
}

}  // namespace plimsoll

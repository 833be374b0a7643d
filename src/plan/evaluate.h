// What comes of a choice: the step changed as it says, lowered whole and put to the allocator.
#pragma once

#include <memory>
#include <string>

#include "plan/choice.h"
#include "plan/memo.h"
#include "step/time/step_time.h"

namespace plimsoll {

struct Outcome {
  Choice choice;
  /// In each step of the optimizer, on all GPUs together.
  std::int64_t samples = 1;
  /// What PyTorch reserves, and with the context on the device. The ends are known where the
  /// outcome is whole.
  Range reserved;
  Range device;
  bool whole = false;
  /// The most that is in use at once if nothing limits it.
  Bytes in_use = 0;
  Bytes room = 0;
  bool fits = false;
  /// Even if everything takes as much as it may, and likely without giving cached memory back to
  /// ask for it again, which holds up every step.
  bool surely_fits = false;
  /// From one step of the optimizer to the next.
  double step_us = 0;
  double gpu_busy_us = 0;

  double SamplesPerSecond() const { return step_us > 0 ? 1e6 * double(samples) / step_us : 0; }
  double MicrosecondsPerSample() const { return step_us / double(samples); }
};

/// Remembers what it made of the step, so that another batch costs no rewriting. From any thread.
class Evaluator {
 public:
  explicit Evaluator(const PlanJob& job) : job_(job) {}

  Result<Outcome> Evaluate(const Choice& choice);
  /// The same with the ends of its ranges.
  Result<Outcome> EvaluateWhole(const Choice& choice);
  /// The time alone, if nothing were refused for lack of memory: much cheaper.
  Result<double> StepMicroseconds(const Choice& choice);
  /// How many were put to the allocator.
  std::size_t evaluations() const { return outcomes_.size(); }

 private:
  using Changed = std::shared_ptr<const Step>;
  /// In one pass, and in as many as are run: what more of them do is known from these.
  struct Steps {
    Changed one;
    Changed run;
  };
  Result<Steps> StepsFor(const Choice& choice);
  Result<Steps> Rewritten(const Choice& choice) const;
  Result<Steps> InPasses(const Changed& one, const Choice& choice) const;
  Result<Outcome> EvaluateAnew(const Choice& choice);
  Result<double> TimeAnew(const Choice& choice);
  StepDuration TimeOf(const Step& step, std::int64_t batch) const;

  const PlanJob& job_;
  Memo<std::string, Result<Steps>> steps_;
  Memo<std::string, Result<double>> times_;
  Memo<std::string, Result<Outcome>> outcomes_;
};

}  // namespace plimsoll

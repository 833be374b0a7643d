// What comes of a choice: the step changed as it says, lowered whole and put to the allocator.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "plan/choice.h"

namespace plimsoll {

struct Outcome {
  Choice choice;
  /// On the device, the context included; what it may be at most.
  Bytes peak = 0;
  Bytes high = 0;
  Bytes room = 0;
  bool fits = false;
  bool surely_fits = false;
  /// From one step of the optimizer to the next.
  double step_us = 0;
  double gpu_busy_us = 0;

  double SamplesPerSecond() const {
    return step_us > 0 ? 1e6 * double(choice.Samples()) / step_us : 0;
  }
};

/// Remembers what it made of the step, so that another batch costs no rewriting.
class Evaluator {
 public:
  explicit Evaluator(const PlanJob& job) : job_(job) {}

  /// From any thread.
  Result<Outcome> Evaluate(const Choice& choice);
  std::size_t evaluations() const { return evaluations_; }

 private:
  using Changed = std::shared_ptr<const Step>;
  Result<Changed> StepFor(const Choice& choice, int passes);

  const PlanJob& job_;
  std::mutex mutex_;
  std::map<std::string, Changed> steps_;
  std::size_t evaluations_ = 0;
};

}  // namespace plimsoll

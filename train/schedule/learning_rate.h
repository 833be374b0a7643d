// Learning rates that follow from the number of the step alone.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace plimsoll::train {

struct ScheduleOptions {
  /// How the rate goes on after the warm-up.
  enum class Shape {
    kConstant,
    kLinear,             // in a line down to `last`
    kCosine,             // in half a cosine down to `last`
    kInverseSquareRoot,  // as 1 / sqrt(step), 1 at the end of the warm-up
    kStep,               // times `step_factor` after each `step_every` steps
    kOneCycle,           // as cosine, and the warm-up is half a cosine too
    kPolynomial,         // (1 - progress)^power down to `last`
  };

  Shape shape = Shape::kConstant;
  /// Steps at the beginning in which the rate rises to its full height: in step n, from 0 on, the
  /// share (n + 1) / warm_up of the way from `first`. So step 0 has a rate, and the last step of
  /// the warm-up the full one.
  std::int64_t warm_up = 0;
  double first = 0;
  /// All steps, the warm-up among them; for linear, cosine, one-cycle and polynomial. From step
  /// `steps` on the factor is `last`.
  std::int64_t steps = 0;
  double last = 0;
  double power = 1;
  std::int64_t step_every = 0;
  double step_factor = 0.1;

  bool operator==(const ScheduleOptions&) const = default;
};

/// Throws c10::Error for options that do not go together.
void CheckSchedule(const ScheduleOptions& options);

/// By what the base rate is multiplied in step `step`, counted from 0. The same whenever and
/// however often it is asked.
double FactorAt(const ScheduleOptions& options, std::int64_t step);

/// The options as plain numbers by name, to be saved beside the number of the step, and back.
/// Throws c10::Error if a number is missing or is none that was saved.
std::map<std::string, double> ScheduleNumbers(const ScheduleOptions& options);
ScheduleOptions ScheduleFromNumbers(const std::map<std::string, double>& numbers);

/// A schedule over the groups of an optimizer, each by the rate that it has when this is made. To
/// go on after a restart, make it before the optimizer's state is loaded, which brings the rate of
/// the step where it was saved.
class LearningRate {
 public:
  LearningRate(torch::optim::Optimizer& optimizer, const ScheduleOptions& options);

  /// Before step `step` is made. A group that came after this was made has no base rate:
  /// c10::Error.
  void Set(std::int64_t step);

  const ScheduleOptions& options() const { return options_; }
  /// One for each group.
  const std::vector<double>& base_rates() const { return base_rates_; }

 private:
  torch::optim::Optimizer& optimizer_;
  ScheduleOptions options_;
  std::vector<double> base_rates_;
};

}  // namespace plimsoll::train

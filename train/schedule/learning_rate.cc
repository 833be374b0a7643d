#include "train/schedule/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace plimsoll::train {
namespace {

using RateShape = ScheduleOptions::Shape;

bool HasAnEnd(RateShape shape) {
  return shape == RateShape::kLinear || shape == RateShape::kCosine ||
         shape == RateShape::kOneCycle || shape == RateShape::kPolynomial;
}

/// From 0 to 1, slow at both ends.
double HalfCosine(double share) { return (1 - std::cos(std::numbers::pi * share)) / 2; }

double WarmUpFactor(const ScheduleOptions& options, std::int64_t step) {
  const double share = static_cast<double>(step + 1) / static_cast<double>(options.warm_up);
  return std::lerp(options.first, 1,
                   options.shape == RateShape::kOneCycle ? HalfCosine(share) : share);
}

double InverseSquareRoot(const ScheduleOptions& options, std::int64_t step) {
  const double full = static_cast<double>(std::max<std::int64_t>(options.warm_up, 1));
  return std::sqrt(full / std::max(static_cast<double>(step) + 1, full));
}

double Falling(const ScheduleOptions& options, double progress) {
  switch (options.shape) {
    case RateShape::kLinear:
      return std::lerp(1, options.last, progress);
    case RateShape::kPolynomial:
      return std::lerp(options.last, 1, std::pow(1 - progress, options.power));
    default:
      return std::lerp(1, options.last, HalfCosine(progress));
  }
}

void CheckFactor(const char* name, double factor) {
  TORCH_CHECK(std::isfinite(factor) && factor >= 0, "a schedule's ", name, " of ", factor,
              " is not a finite number from 0 on");
}

std::int64_t ToCount(const std::string& name, double number) {
  // Beyond this, doubles no longer count.
  TORCH_CHECK(number >= 0 && number <= 0x1p53 && number == std::floor(number), "a schedule's ",
              name, " of ", number, " is no count");
  return static_cast<std::int64_t>(number);
}

}  // namespace

void CheckSchedule(const ScheduleOptions& options) {
  TORCH_CHECK(options.shape >= RateShape::kConstant && options.shape <= RateShape::kPolynomial,
              "a schedule's shape is none of those that there are");
  TORCH_CHECK(options.warm_up >= 0, "a warm-up of ", options.warm_up, " steps cannot be");
  TORCH_CHECK(options.steps >= 0, "a schedule of ", options.steps, " steps cannot be");
  CheckFactor("first factor", options.first);
  CheckFactor("last factor", options.last);
  CheckFactor("step factor", options.step_factor);
  TORCH_CHECK(std::isfinite(options.power) && options.power > 0, "a schedule's power of ",
              options.power, " is not above 0");
  TORCH_CHECK(!HasAnEnd(options.shape) || options.steps > options.warm_up, "a schedule of ",
              options.steps, " steps leaves none after a warm-up of ", options.warm_up);
  TORCH_CHECK(options.shape != RateShape::kStep || options.step_every > 0,
              "a schedule that falls in steps needs the number of steps after which it does");
}

double FactorAt(const ScheduleOptions& options, std::int64_t step) {
  CheckSchedule(options);
  TORCH_CHECK(step >= 0, "there is no step ", step);
  if (step < options.warm_up) return WarmUpFactor(options, step);
  const std::int64_t since = step - options.warm_up;
  if (HasAnEnd(options.shape)) {
    const std::int64_t all = options.steps - options.warm_up;
    const double progress = static_cast<double>(std::min(since, all)) / static_cast<double>(all);
    return Falling(options, progress);
  }
  switch (options.shape) {
    case RateShape::kInverseSquareRoot:
      return InverseSquareRoot(options, step);
    case RateShape::kStep:
      return std::pow(options.step_factor, static_cast<double>(since / options.step_every));
    default:
      return 1;
  }
}

std::map<std::string, double> ScheduleNumbers(const ScheduleOptions& options) {
  return {{"shape", static_cast<double>(options.shape)},
          {"warm_up", static_cast<double>(options.warm_up)},
          {"first", options.first},
          {"steps", static_cast<double>(options.steps)},
          {"last", options.last},
          {"power", options.power},
          {"step_every", static_cast<double>(options.step_every)},
          {"step_factor", options.step_factor}};
}

ScheduleOptions ScheduleFromNumbers(const std::map<std::string, double>& numbers) {
  const std::map<std::string, double> names = ScheduleNumbers({});
  for (const auto& [name, number] : numbers) {
    TORCH_CHECK(names.contains(name), "a schedule has no number named '", name, "'");
  }
  const auto get = [&](const std::string& name) {
    TORCH_CHECK(numbers.contains(name), "a schedule's ", name, " is missing");
    return numbers.at(name);
  };
  const auto count = [&](const std::string& name) { return ToCount(name, get(name)); };
  const std::int64_t shape = count("shape");
  TORCH_CHECK(shape <= static_cast<std::int64_t>(RateShape::kPolynomial),
              "a schedule's shape is none of those that there are");
  ScheduleOptions options{.shape = static_cast<RateShape>(shape),
                          .warm_up = count("warm_up"),
                          .first = get("first"),
                          .steps = count("steps"),
                          .last = get("last"),
                          .power = get("power"),
                          .step_every = count("step_every"),
                          .step_factor = get("step_factor")};
  CheckSchedule(options);
  return options;
}

LearningRate::LearningRate(torch::optim::Optimizer& optimizer, const ScheduleOptions& options)
    : optimizer_(optimizer), options_(options) {
  CheckSchedule(options);
  for (const auto& group : optimizer.param_groups()) {
    base_rates_.push_back(group.options().get_lr());
  }
}

void LearningRate::Set(std::int64_t step) {
  auto& groups = optimizer_.param_groups();
  TORCH_CHECK(groups.size() == base_rates_.size(),
              "the optimizer has other groups than when its schedule was made");
  const double factor = FactorAt(options_, step);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    groups[i].options().set_lr(base_rates_[i] * factor);
  }
}

}  // namespace plimsoll::train

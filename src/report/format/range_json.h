// A predicted figure in JSON.
#pragma once

#include <cmath>

#include "job/trial/trial.h"
#include "report/format/json_values.h"

namespace plimsoll {

inline Json RangeJson(const Range& range) {
  return {{"low", range.low}, {"best", range.best}, {"high", range.high}};
}

/// The ends of the time of a step.
inline Json StepRangeJson(const TrialResult& trial) {
  return {{"low", std::llround(trial.step_low_us)}, {"high", std::llround(trial.step_high_us)}};
}

}  // namespace plimsoll

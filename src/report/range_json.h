// A predicted figure in JSON.
#pragma once

#include "report/json_values.h"
#include "step/trial/trial.h"

namespace plimsoll {

inline Json RangeJson(const Range& range) {
  return {{"low", range.low}, {"best", range.best}, {"high", range.high}};
}

}  // namespace plimsoll

// A predicted figure in JSON.
#pragma once

#include "job/trial/trial.h"
#include "report/format/json_values.h"

namespace plimsoll {

inline Json RangeJson(const Range& range) {
  return {{"low", range.low}, {"best", range.best}, {"high", range.high}};
}

}  // namespace plimsoll

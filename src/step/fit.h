// Whether a batch of a step fits, and how long it takes: what Predict says of it, without the
// ranges, which are most of its work. For those who ask about many.
#pragma once

#include "base/result.h"
#include "hardware/gpu.h"
#include "step/file/step.h"
#include "step/predict.h"

namespace plimsoll {

struct Fit {
  /// The most that would be reserved, and in use, if nothing limited it: comparable where it does
  /// not fit, too.
  Bytes unlimited = 0;
  Bytes in_use = 0;
  /// Within the room, where it fits.
  Bytes reserved = 0;
  Bytes room = 0;
  bool fits = false;
  bool surely_fits = false;
  double step_us = 0;
  double gpu_busy_us = 0;
};

Result<Fit> FitOf(const Step& step, const Gpu& gpu, const PredictOptions& options);

}  // namespace plimsoll

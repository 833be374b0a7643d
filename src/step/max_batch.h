// The largest batch that fits, and the fastest one.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "step/predict.h"

namespace plimsoll {

/// A batch, and how fast it trains, roughly.
struct BatchSpeed {
  /// 0: there is none.
  std::int64_t batch = 0;
  /// 0 where no time is known: of two recorded runs.
  double step_us = 0;
  /// Workspaces of convolutions that are refused, over all steps.
  std::int64_t refused = 0;

  double SamplesPerSecond() const { return step_us > 0 ? 1e6 * double(batch) / step_us : 0; }
};

struct MaxBatch {
  /// The largest that fits even if everything takes as much as it may: the one to train with.
  BatchSpeed sure;
  /// The largest that may fit.
  BatchSpeed most;
  /// That with the most samples a second, of those that may fit: one that surely fits unless
  /// another is clearly faster. Refused workspaces can make the largest batches slow.
  BatchSpeed fastest;

  /// The batch that a user who asks for the largest is answered with.
  std::int64_t Answer() const { return sure.batch > 0 ? sure.batch : most.batch; }
};

/// By bisection. `options.batch` is ignored.
Result<MaxBatch> FindMaxBatch(const Step& step, const Gpu& gpu, const PredictOptions& options);

}  // namespace plimsoll

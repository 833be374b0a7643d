// What else could be trained with: every precision, many batch sizes, two settings of the
// allocator, each predicted; and which of them nothing else beats.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "hardware/gpu.h"
#include "step/file/step.h"
#include "step/predict.h"

namespace plimsoll {

/// The figures of one Prediction.
struct TradeOff {
  std::string precision;
  std::int64_t batch = 0;
  /// As FormatSettings writes them: "" for the defaults.
  std::string settings;
  /// The best figures: within the GPU's memory if it fits.
  Bytes allocated = 0;
  Bytes reserved = 0;
  Bytes device = 0;
  /// What the device holds if everything takes as much as it may.
  Bytes high = 0;
  double step_us = 0;
  bool fits = false;
  bool surely_fits = false;
  /// It fits, and nothing else that fits takes less memory without taking longer for a sample, or
  /// less time without more memory.
  bool on_frontier = false;
  /// What the options name.
  bool chosen = false;

  double MicrosecondsPerSample() const { return step_us / static_cast<double>(batch); }
};

/// How many of all are done. Called from several threads, never from two at once.
using TradeOffProgress = std::function<void(std::size_t done, std::size_t all)>;

/// By precision as captured, then by settings (those given first), then by batch. A precision has
/// at most ten batches: powers of two up to the largest that fits, one that does not (but
/// none beyond 2^24), and the chosen one.
Result<std::vector<TradeOff>> TradeOffs(const Step& step, const Gpu& gpu,
                                        const PredictOptions& chosen,
                                        const TradeOffProgress& progress = {});

}  // namespace plimsoll

// What torch.compile makes of a job: the same job with it, or without.
#pragma once

#include <optional>

#include "hardware/gpu.h"
#include "job/trial/trial.h"

namespace plimsoll {

/// Of a job that was captured both compiled and in eager mode.
struct Compiled {
  /// Whether what is predicted is compiled; the figures are of the other.
  bool is = false;
  Needs other;
  double other_step_us = 0;
  /// What is made at most to time a kernel, in the first step.
  Bytes timing = 0;
};

/// Nothing where only one of them was captured.
std::optional<Compiled> FindCompiled(const Job& job, const Gpu& gpu, const PredictOptions& options);

}  // namespace plimsoll

// How long a training step takes: the host issues kernels, the GPU runs them one after the other,
// and collectives beside them.
#pragma once

#include <cstdint>
#include <map>

#include "job/calls/host_model.h"
#include "job/time/collective_time.h"
#include "job/time/kernel_time.h"

namespace plimsoll {

/// Of the variant's calls, by index: how many directions of a convolution were refused their
/// workspace.
using RefusedCalls = std::map<std::uint32_t, int>;

struct StepDuration {
  /// How long the GPU is busy, collectives aside.
  KernelTime gpu;
  /// How long collectives take, whatever runs beside them.
  double collectives_us = 0;
  /// How long the GPU has nothing to do but to wait for them.
  double waited_us = 0;
  /// How long the host takes to issue it all.
  double host_us = 0;
  /// From the beginning of a step to the end of its last kernel, host and GPU side by side.
  double us = 0;
  /// What it may take instead, if kernels and host are as far off as they are in one of ten.
  double low_us = 0, high_us = 0;
};

/// Of the last captured step of a variant, which is what every later one takes.
StepDuration StepTime(const Job& step, const Variant& variant, const Gpu& gpu, std::int64_t batch,
                      const RefusedCalls& refused = {}, const HostModel& host = {},
                      const Cluster& cluster = {});

}  // namespace plimsoll

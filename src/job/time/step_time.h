// How long a training step takes: the host issues kernels, the GPU runs them one after the other,
// and collectives beside them.
#pragma once

#include <cstdint>
#include <map>

#include "job/time/collective_time.h"
#include "job/time/kernel_time.h"

namespace plimsoll {

/// Of the variant's calls, by index: how many directions of a convolution were refused their
/// workspace.
using RefusedCalls = std::map<std::uint32_t, int>;

/// What the host takes to issue work, in microseconds: Python and PyTorch's dispatch.
struct HostModel {
  /// A call of the forward, of the backward (which runs without Python), of anything else. What a
  /// checkpoint repeats is a call of the forward, wherever it runs.
  double forward = 49, backward = 15.8, other = 70;
  /// A call of what torch.compile wrote, and a buffer that it makes. Not measured: taken to be a
  /// third of what Python takes elsewhere.
  double written = 15, buffer = 4;
  /// A checkpoint besides its calls: the state of the random numbers, the context of autocast; and
  /// the hooks on what is saved, for each tensor that a call which is repeated reads. Both by
  /// blocks of six kinds on an H200, too small to keep it busy.
  double checkpoint = 600, saved = 25;
  /// A tensor that a hook copies to the host or back, likewise.
  double copy = 45;
  /// A tensor that an optimizer goes through in Python.
  double tensor = 4.3;
  /// A step besides: the loop, a wait for the GPU at its end.
  double step = 360;
  /// Between two kernels on the GPU.
  double gap = 1.6;
};
/// Of the machine that the H200 was measured on.
const HostModel& MeasuredHost();

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
};

/// Of the last captured step of a variant, which is what every later one takes.
StepDuration StepTime(const Job& step, const Variant& variant, const Gpu& gpu, std::int64_t batch,
                      const RefusedCalls& refused = {}, const HostModel& host = MeasuredHost(),
                      const Cluster& cluster = {});

}  // namespace plimsoll

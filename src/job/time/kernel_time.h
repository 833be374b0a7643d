// How long the GPU is busy with one operator: a rule for each kind, with the constants of a
// TimeModel. A single call may be off by a tenth or two; over a step these mostly cancel.
#pragma once

#include "allocator/settings/version.h"
#include "job/calls/call.h"
#include "job/time/time_model.h"

namespace plimsoll {

struct KernelTime {
  double us = 0;
  /// Kernels that it launches, about.
  double kernels = 0;

  KernelTime& operator+=(const KernelTime& more) {
    us += more.us;
    kernels += more.kernels;
    return *this;
  }
};

/// What a call's time depends on besides the call.
struct TimeContext {
  const TimeModel& model;
  const Gpu& gpu;
  TorchVersion torch = {};
  /// torch.backends.cuda.matmul.allow_tf32
  bool matmul_tf32 = false;
};

/// Nothing for calls that launch no kernel. `refused`: how many directions of a convolution were
/// refused their workspace.
KernelTime TimeOf(const Call& call, const TimeContext& context, int refused = 0);

/// Between pinned memory and the device.
double HostCopyTime(double bytes, double copies, const TimeContext& context);

/// The group of constants by which it is timed: "product", "convolution", "memory", …
std::string_view TimeGroupOf(const Call& call);

}  // namespace plimsoll

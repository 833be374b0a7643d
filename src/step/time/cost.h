// How long a step takes, roughly: each operator as long as its arithmetic or its traffic with
// memory takes, whichever is longer.
#pragma once

#include <cstdint>
#include <map>

#include "hardware/gpu.h"
#include "step/rules/call.h"

namespace plimsoll {

struct Cost {
  double flops = 0;
  /// Read and written.
  double bytes = 0;
  /// Whether tensor cores serve it, and in which type.
  bool matrix = false;
  bool convolution = false;
  /// Of a convolution: forward, or the gradients that are asked for.
  int directions = 1;
  bool backward = false;
  DType dtype = DType::kFloat32;
};

/// Of one call; nothing for those that launch no kernel.
Cost CostOf(const Call& call);

/// Of the variant's calls, by index: how many directions of a convolution were refused their
/// workspace.
using RefusedCalls = std::map<std::uint32_t, int>;

/// Microseconds of the last captured step of a variant, which is what every later one takes.
double StepMicroseconds(const Step& step, const Variant& variant, const Gpu& gpu,
                        std::int64_t batch, const RefusedCalls& refused = {});

}  // namespace plimsoll

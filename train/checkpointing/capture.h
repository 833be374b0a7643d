// Whether a CUDA graph is being captured, during which random numbers can be drawn but not gone
// back to.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace plimsoll::train {

/// How far the graph that is being captured on the current stream has taken the device's random
/// numbers. None where nothing is being captured.
std::optional<std::uint64_t> DrawnInCapture(c10::Device device);

}  // namespace plimsoll::train

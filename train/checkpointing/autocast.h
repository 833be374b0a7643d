// Mixed precision for a part of the program: LibTorch has the switches, and no guard.
#pragma once

#include <ATen/autocast_mode.h>
#include <c10/core/Device.h>

namespace plimsoll::train {

/// How operators choose their precision on this thread, for one kind of device.
struct AutocastState {
  at::DeviceType device = at::kCPU;
  bool enabled = false;
  at::ScalarType dtype = at::kBFloat16;
  bool cache = true;

  static AutocastState Of(at::DeviceType device);
};

/// RAII guard: operators run in `state`'s precision. Leaving the outermost one forgets the
/// copies of weights that were made in it.
class AutocastScope {
 public:
  explicit AutocastScope(const AutocastState& state);
  AutocastScope(at::DeviceType device, at::ScalarType dtype)
      : AutocastScope({.device = device, .enabled = true, .dtype = dtype, .cache = true}) {}
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  AutocastState before_;
};

}  // namespace plimsoll::train

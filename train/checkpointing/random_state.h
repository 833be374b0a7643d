// The state of torch's random generators, to go back to.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace plimsoll::train {

/// Of the CPU, and of one CUDA device where that is the one; of the CPU alone while a CUDA graph is
/// captured, since the device's can then be neither read nor set.
class RandomState {
 public:
  static RandomState Of(c10::Device device);

  void Restore() const;

  /// To be saved with a checkpoint: the tensors themselves; the second is undefined on the CPU.
  const at::Tensor& cpu() const { return cpu_; }
  const at::Tensor& cuda() const { return cuda_; }
  static RandomState From(c10::Device device, at::Tensor cpu, at::Tensor cuda);
  /// Whether a generator can have come to this state. The sizes must be those of its states. Torch
  /// itself does not look closely, and would read beyond its memory later.
  bool IsPossible() const;

 private:
  RandomState(c10::Device device, at::Tensor cpu, at::Tensor cuda)
      : device_(device), cpu_(std::move(cpu)), cuda_(std::move(cuda)) {}

  c10::Device device_;
  at::Tensor cpu_;
  at::Tensor cuda_;
};

/// Random numbers as they were at `state`, then on as if nothing had been.
class RandomStateScope {
 public:
  RandomStateScope(c10::Device device, const RandomState& state)
      : before_(RandomState::Of(device)) {
    state.Restore();
  }
  ~RandomStateScope() { before_.Restore(); }
  RandomStateScope(const RandomStateScope&) = delete;
  RandomStateScope& operator=(const RandomStateScope&) = delete;

 private:
  RandomState before_;
};

/// RAII guard: random numbers are those of one part of what several ranks compute: they differ
/// between parts, and are the same when it is computed again. After it they go on as on all other
/// ranks. Without a part nothing changes.
class RandomPartScope {
 public:
  RandomPartScope(c10::Device device, const std::optional<int>& part);
  ~RandomPartScope() {
    if (before_) before_->Restore();
  }
  RandomPartScope(const RandomPartScope&) = delete;
  RandomPartScope& operator=(const RandomPartScope&) = delete;

 private:
  std::optional<RandomState> before_;
};

}  // namespace plimsoll::train

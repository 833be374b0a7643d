#include "train/random_state.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>

#include <mutex>

#include "train/host_memory.h"

namespace plimsoll::train {
namespace {

at::Tensor StateOf(c10::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  const at::Tensor state = generator.get_state();
  // Five kilobytes each for the CPU, and a model with checkpoints has one a block: not from the
  // budget.
  return HostTensor(state.sizes(), state.scalar_type(), /*pinned=*/false).copy_(state);
}

void SetState(c10::Device device, const at::Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

RandomState RandomState::Of(c10::Device device) {
  return {device, StateOf(c10::kCPU), device.is_cuda() ? StateOf(device) : at::Tensor()};
}

RandomState RandomState::From(c10::Device device, at::Tensor cpu, at::Tensor cuda) {
  return {device, std::move(cpu), std::move(cuda)};
}

void RandomState::Restore() const {
  SetState(c10::kCPU, cpu_);
  if (cuda_.defined()) SetState(device_, cuda_);
}

}  // namespace plimsoll::train

#include "train/checkpointing/random_state.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/randint.h>

#include <cstring>
#include <limits>
#include <mutex>

#include "train/budget/host_memory.h"
#include "train/checkpointing/capture.h"

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

template <class Plain>
Plain At(const at::Tensor& state, std::int64_t offset) {
  TORCH_CHECK(state.numel() >= offset + static_cast<std::int64_t>(sizeof(Plain)),
              "a state of random numbers is too short");
  Plain plain;
  std::memcpy(&plain, static_cast<const char*>(state.data_ptr()) + offset, sizeof plain);
  return plain;
}

/// A Mersenne twister has 624 numbers, of which `left` - 1 will be taken, from `next` on. The state
/// begins with the seed; `left` (32 bits), whether it was seeded (32) and `next` (64) follow, and
/// its last member is a bool, with three bytes of padding.
bool IsPossibleOnCpu(const at::Tensor& state) {
  constexpr std::int64_t kNumbers = 624;
  const auto left = At<std::int32_t>(state, 8);
  const auto seeded = At<std::int32_t>(state, 12);
  const auto next = At<std::uint64_t>(state, 16);
  const auto has_normal = At<std::uint8_t>(state, state.numel() - 4);
  return seeded == 1 && left >= 1 && left <= kNumbers && next <= kNumbers &&
         static_cast<std::int64_t>(next) + left <= kNumbers + 1 && has_normal <= 1;
}

/// The seed, and how many numbers were taken: always a multiple of four.
bool IsPossibleOnCuda(const at::Tensor& state) { return At<std::uint64_t>(state, 8) % 4 == 0; }

}  // namespace

RandomState RandomState::Of(c10::Device device) {
  const bool readable = device.is_cuda() && !DrawnInCapture(device);
  return {device, StateOf(c10::kCPU), readable ? StateOf(device) : at::Tensor()};
}

RandomState RandomState::From(c10::Device device, at::Tensor cpu, at::Tensor cuda) {
  return {device, std::move(cpu), std::move(cuda)};
}

bool RandomState::IsPossible() const {
  return IsPossibleOnCpu(cpu_) && (!cuda_.defined() || IsPossibleOnCuda(cuda_));
}

void RandomState::Restore() const {
  SetState(c10::kCPU, cpu_);
  if (cuda_.defined()) SetState(device_, cuda_);
}

RandomPartScope::RandomPartScope(c10::Device device, const std::optional<int>& part) {
  if (!part) return;
  TORCH_CHECK(!DrawnInCapture(device),
              "dropout in a part of a model that is split among ranks "
              "cannot be part of a CUDA graph");
  // From the generator that a checkpoint goes back to: there is no further state to keep.
  const auto drawn = static_cast<std::uint64_t>(
      at::randint(std::numeric_limits<std::int64_t>::max(), {1}, at::kLong).item<std::int64_t>());
  before_ = RandomState::Of(device);
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  // A seed of one part must not be that of another in a later draw.
  constexpr std::uint64_t kFar = 0x9e3779b97f4a7c15;
  generator.set_current_seed(drawn + kFar * static_cast<std::uint64_t>(*part + 1));
}

}  // namespace plimsoll::train

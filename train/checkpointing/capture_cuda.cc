#include <ATen/Context.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>

#include <mutex>

#include "train/checkpointing/capture.h"

namespace plimsoll::train {

std::optional<std::uint64_t> DrawnInCapture(c10::Device device) {
  if (!device.is_cuda()) return std::nullopt;
  const auto status = c10::cuda::currentStreamCaptureStatusMayInitCtx();
  if (status == c10::cuda::CaptureStatus::None) return std::nullopt;
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  // To draw nothing says where the next would come from.
  return generator.get<at::CUDAGeneratorImpl>()->philox_cuda_state(0).offset_intragraph_;
}

}  // namespace plimsoll::train

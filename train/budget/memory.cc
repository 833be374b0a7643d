#include "train/budget/memory.h"

#include <ATen/Context.h>

#include "train/budget/cpu_allocator.h"

namespace plimsoll::train {
namespace {

class CpuMemory : public DeviceMemory {
 public:
  MemoryFigures figures() const override {
    const Bytes now = CpuAllocator::Installed().allocated();
    const Bytes peak = CpuAllocator::Installed().peak();
    return {.allocated = now, .peak_allocated = peak, .reserved = now, .peak_reserved = peak};
  }
  MemoryTraffic traffic() const override {
    return {.bytes = CpuAllocator::Installed().made(),
            .requests = CpuAllocator::Installed().requests()};
  }
  void ResetPeaks() override { CpuAllocator::Installed().ResetPeak(); }
  void SetLimit(std::optional<Bytes> limit) override {
    // oneDNN catches a lack of memory by itself, and torch then does without it for good: results
    // would depend on whether a request was ever refused.
    if (limit) at::globalContext().setUserEnabledMkldnn(false);
    CpuAllocator::Installed().SetLimit(limit);
  }
  std::optional<Bytes> limit() const override { return CpuAllocator::Installed().limit(); }
  void ReleaseCached() override {}
};

}  // namespace

Bytes BytesOf(const std::vector<at::Tensor>& tensors) {
  Bytes bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<Bytes>(tensor.nbytes());
  return bytes;
}

DeviceMemory& MemoryOf(c10::Device device) {
  if (device.is_cuda()) return CudaMemoryOf(device.index() < 0 ? 0 : device.index());
  TORCH_CHECK(device.is_cpu(), "plimsoll::train knows CPU and CUDA devices, not ", device);
  static CpuMemory memory;
  CpuAllocator::Installed();
  return memory;
}

}  // namespace plimsoll::train

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>

#include "train/budget/memory.h"

namespace plimsoll::train {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

Bytes TotalOf(c10::DeviceIndex index) {
  cudaDeviceProp properties;
  TORCH_CHECK(cudaGetDeviceProperties(&properties, index) == cudaSuccess, "no CUDA device ",
              int(index));
  return static_cast<Bytes>(properties.totalGlobalMem);
}

class CudaMemory : public DeviceMemory {
 public:
  explicit CudaMemory(c10::DeviceIndex index) : index_(index), total_(TotalOf(index)) {
    // The caching allocator knows no device before CUDA is set up, which the first tensor does.
    at::empty({0}, at::TensorOptions(c10::Device(at::kCUDA, index)));
  }

  MemoryFigures figures() const override {
    const auto stats = allocator::getDeviceStats(index_);
    // Index 0 is the sum over the pools of small and of large blocks.
    const auto& allocated = stats.allocated_bytes[0];
    const auto& reserved = stats.reserved_bytes[0];
    return {.allocated = allocated.current,
            .peak_allocated = allocated.peak,
            .reserved = reserved.current,
            .peak_reserved = reserved.peak};
  }
  MemoryTraffic traffic() const override {
    const auto stats = allocator::getDeviceStats(index_);
    return {.bytes = stats.allocated_bytes[0].allocated, .requests = stats.allocation[0].allocated};
  }
  void ResetPeaks() override { allocator::resetPeakStats(index_); }
  void SetLimit(std::optional<Bytes> limit) override {
    const double share = limit ? static_cast<double>(*limit) / static_cast<double>(total_) : 1.0;
    allocator::setMemoryFraction(std::min(share, 1.0), index_);
    limit_ = limit;
  }
  std::optional<Bytes> limit() const override { return limit_; }
  void ReleaseCached() override { allocator::emptyCache(); }

 private:
  c10::DeviceIndex index_;
  Bytes total_;
  std::optional<Bytes> limit_;
};

}  // namespace

DeviceMemory& CudaMemoryOf(c10::DeviceIndex index) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, std::unique_ptr<CudaMemory>> known;
  const std::lock_guard lock(mutex);
  auto& memory = known[index];
  if (!memory) memory = std::make_unique<CudaMemory>(index);
  return *memory;
}

}  // namespace plimsoll::train

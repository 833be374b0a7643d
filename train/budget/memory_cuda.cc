#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
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

/// Expandable segments leave fewer holes, which decides whether a tight budget is enough. They grow
/// by pages, and the last may lie above the limit: below a gigabyte that is too much to give away.
constexpr Bytes kPage = 20 * kMiB;
constexpr Bytes kLeastForExpandable = kGiB;

/// False where the user has settings of their own, which stay.
bool UseExpandableSegments() {
  static const bool used = [] {
    for (const char* const name : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
      if (std::getenv(name) != nullptr) return false;
    }
    allocator::setAllocatorSettings("expandable_segments:True");
    return true;
  }();
  return used;
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
    Bytes allowed = limit.value_or(total_);
    if (limit && *limit >= kLeastForExpandable && UseExpandableSegments()) expandable_ = true;
    if (limit && expandable_) allowed = std::max<Bytes>(allowed - kPage, 0);
    const double share = static_cast<double>(allowed) / static_cast<double>(total_);
    allocator::setMemoryFraction(std::min(share, 1.0), index_);
    limit_ = limit;
  }
  std::optional<Bytes> limit() const override { return limit_; }
  void ReleaseCached() override { allocator::emptyCache(); }

 private:
  c10::DeviceIndex index_;
  Bytes total_;
  std::optional<Bytes> limit_;
  bool expandable_ = false;
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

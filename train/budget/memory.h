// What one device holds, and the most that it may hold.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <optional>
#include <vector>

#include "base/bytes.h"

namespace plimsoll::train {

struct MemoryFigures {
  /// In tensors.
  Bytes allocated = 0;
  Bytes peak_allocated = 0;
  /// With what the allocator keeps for reuse; this is what a limit limits. The same as allocated on
  /// the CPU, where nothing is kept.
  Bytes reserved = 0;
  Bytes peak_reserved = 0;
};

/// Since the program began.
struct MemoryTraffic {
  Bytes bytes = 0;
  std::int64_t requests = 0;
};

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  virtual MemoryFigures figures() const = 0;
  virtual MemoryTraffic traffic() const = 0;
  /// Peaks count from now on.
  virtual void ResetPeaks() = 0;
  /// Requests beyond it fail with c10::OutOfMemoryError. No limit: what the device has.
  virtual void SetLimit(std::optional<Bytes> limit) = 0;
  virtual std::optional<Bytes> limit() const = 0;
  /// Gives back what is kept for reuse.
  virtual void ReleaseCached() = 0;
};

/// What tensors hold; one that is a view counts as it is seen.
Bytes BytesOf(const std::vector<at::Tensor>& tensors);

/// The one of this device, for the life of the program. On the CPU an allocator of our own counts.
DeviceMemory& MemoryOf(c10::Device device);

/// Of the CUDA device; fails where this is built without CUDA.
DeviceMemory& CudaMemoryOf(c10::DeviceIndex index);

}  // namespace plimsoll::train

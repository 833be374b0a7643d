// How bytes get from a device to the host and back, beside its computation. Internal to Offload.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "base/bytes.h"

namespace plimsoll::train {

/// A copy that may still be under way. Whoever gives up the memory on the device calls HoldBack
/// first: the allocator hands it out again at once.
class Copy {
 public:
  virtual ~Copy() = default;
  virtual bool Done() const = 0;
  /// What the device is told to compute from now on, it computes after the copy. The host does not
  /// wait.
  virtual void HoldBack() = 0;
};

class CopyQueues {
 public:
  virtual ~CopyQueues() = default;

  /// Whether copies can be made now.
  virtual bool Ready() const = 0;
  /// Memory that copies need not wait for. Fails with c10::OutOfMemoryError.
  virtual at::Tensor NewHost(Bytes bytes) = 0;
  /// After what has been computed so far. Null: done already.
  virtual std::unique_ptr<Copy> ToHost(void* to, const void* from, Bytes bytes) = 0;
  /// The same, and after `first`, which may be null.
  virtual std::unique_ptr<Copy> ToDevice(void* to, const void* from, Bytes bytes,
                                         const Copy* first) = 0;
  /// Returns when all copies are done.
  virtual void Synchronize() = 0;
};

/// For the CPU the copies are made at once, to and from memory that is in no budget.
std::unique_ptr<CopyQueues> CopyQueuesOf(c10::Device device);

/// Fails where this is built without CUDA.
std::unique_ptr<CopyQueues> CudaCopyQueues(c10::Device device);

}  // namespace plimsoll::train

// What becomes of the tensors that autograd saves for backward. Python has hooks for this; LibTorch
// has none, so an engine of our own hands them out.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace plimsoll::train {

/// A saved tensor in another form.
class PackedTensor {
 public:
  virtual ~PackedTensor() = default;
  virtual at::Tensor Unpack() = 0;
};

class SavedTensorPolicy {
 public:
  virtual ~SavedTensorPolicy() = default;
  /// Called for each tensor that is saved.
  virtual std::unique_ptr<PackedTensor> Pack(const at::Tensor& tensor) = 0;
};

/// RAII guard: on this thread tensors are saved by this policy; a null one saves as usual. The
/// innermost scope decides.
class SavedTensorScope {
 public:
  explicit SavedTensorScope(std::shared_ptr<SavedTensorPolicy> policy);
  ~SavedTensorScope();
  SavedTensorScope(const SavedTensorScope&) = delete;
  SavedTensorScope& operator=(const SavedTensorScope&) = delete;

 private:
  std::shared_ptr<SavedTensorPolicy> outer_;
};

}  // namespace plimsoll::train

// What goes into one training step.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace plimsoll::train {

/// Tensors with one row a sample: inputs, then targets.
struct Batch {
  std::vector<at::Tensor> tensors;

  std::int64_t size() const { return tensors.empty() ? 0 : tensors[0].size(0); }
  /// Rows [begin, end) of each, without a copy.
  Batch Rows(std::int64_t begin, std::int64_t end) const;
  Batch To(c10::Device device, bool non_blocking = false) const;
  /// The same rows, moved there where all of them lie on another kind of device: those of a loader,
  /// when the GPU comes to them. What lies there in part has its reasons and stays.
  Batch On(c10::Device device) const;
  /// Throws c10::Error where there are fewer rows, or a tensor has other rows than the first.
  void CheckRows(std::int64_t least = 1) const;
};

}  // namespace plimsoll::train

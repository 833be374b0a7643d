// Cross-entropy of a linear layer over a large vocabulary, without its logits: they are made a few
// rows at a time, and their gradients at once, while they are there.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace plimsoll::train {

struct LinearCrossEntropyOptions {
  enum class Reduction { kMean, kSum };

  /// Rows of logits at a time. 0: so many that they take about as much as the hidden states or, if
  /// that is more, as the weight's gradient, which is there anyway; but then a quarter at most.
  std::int64_t chunk = 0;
  std::int64_t ignore_index = -100;
  Reduction reduction = Reduction::kMean;
};

/// cross_entropy(linear(hidden, weight, bias), targets) for hidden [..., d], weight [V, d], bias
/// [V] and targets [...]. The loss is fp32 (fp64 for fp64); the products are made in the autocast
/// type where autocast is on. Gradients are computed in forward, for those that want one, so that
/// backward can be called once, and not differentiated.
at::Tensor LinearCrossEntropy(const at::Tensor& hidden, const at::Tensor& weight,
                              const std::optional<at::Tensor>& bias, const at::Tensor& targets,
                              const LinearCrossEntropyOptions& options = {});

}  // namespace plimsoll::train

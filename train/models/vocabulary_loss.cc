#include "train/models/vocabulary_loss.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>

#include <algorithm>

namespace plimsoll::train {

at::Tensor VocabularyLossImpl::forward(const at::Tensor& hidden, const at::Tensor& weight,
                                       const at::Tensor& targets,
                                       const std::optional<at::Tensor>& bias) {
  // Torch's has none of the three.
  const bool torch_has_it = options_.z_loss == 0 && options_.soft_cap == 0 && !options_.split;
  if (chunked_ || !torch_has_it) {
    LinearCrossEntropyOptions options = options_;
    if (!chunked_) options.chunk = std::max<std::int64_t>(targets.numel(), 1);
    return LinearCrossEntropy(hidden, weight, bias, targets, options);
  }
  const at::Tensor logits = at::linear(hidden, weight, bias);
  const bool mean = options_.reduction == LinearCrossEntropyOptions::Reduction::kMean;
  return at::cross_entropy_loss(logits.flatten(0, -2), targets.flatten(), options_.class_weights,
                                mean ? at::Reduction::Mean : at::Reduction::Sum,
                                options_.ignore_index, options_.label_smoothing);
}

at::Tensor VocabularyLossImpl::Logits(const at::Tensor& hidden, const at::Tensor& weight,
                                      const std::optional<at::Tensor>& bias) const {
  if (!options_.split) return at::linear(hidden, weight, bias);
  return options_.split->Join(at::linear(options_.split->Enter(hidden), weight, bias));
}

std::vector<VocabularyLossImpl*> VocabularyLossesOf(torch::nn::Module& model) {
  std::vector<VocabularyLossImpl*> losses;
  for (const auto& module : model.modules()) {
    if (auto* const loss = dynamic_cast<VocabularyLossImpl*>(module.get())) losses.push_back(loss);
  }
  return losses;
}

}  // namespace plimsoll::train

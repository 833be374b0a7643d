// The last linear layer of a language model with its cross-entropy. Whether its logits, often the
// largest tensor of all, are ever whole is a lever, which Trainer finds and sets.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "train/models/cross_entropy.h"

namespace plimsoll::train {

/// Has no parameters: the weight is given, since many models share it with their embedding.
class VocabularyLossImpl : public torch::nn::Module {
 public:
  explicit VocabularyLossImpl(LinearCrossEntropyOptions options = {}) : options_(options) {}

  /// LinearCrossEntropy; in chunks, or with all logits at once as torch does it. The two differ by
  /// rounding.
  at::Tensor forward(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                     const std::optional<at::Tensor>& bias = std::nullopt);
  at::Tensor Logits(const at::Tensor& hidden, const at::Tensor& weight,
                    const std::optional<at::Tensor>& bias = std::nullopt) const;

  /// Null: the weight has all classes.
  void set_split(std::shared_ptr<const SplitVocabulary> split) {
    options_.split = std::move(split);
  }
  bool chunked() const { return chunked_; }
  void set_chunked(bool chunked) { chunked_ = chunked; }

 private:
  LinearCrossEntropyOptions options_;
  bool chunked_ = false;
};
TORCH_MODULE(VocabularyLoss);

/// All that a model has.
std::vector<VocabularyLossImpl*> VocabularyLossesOf(torch::nn::Module& model);

}  // namespace plimsoll::train

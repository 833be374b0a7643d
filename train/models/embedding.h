// Rows of a table by their numbers, as nn::Embedding, with the same options, first weights and
// names of parameters; ranks can share its rows (train/parallel/tensor/tensor_parallel.h).
#pragma once

#include <torch/nn/modules/embedding.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <utility>

namespace plimsoll::train {

class EmbeddingTableImpl : public torch::nn::EmbeddingImpl {
 public:
  using EmbeddingImpl::EmbeddingImpl;

  at::Tensor forward(const at::Tensor& numbers) {
    return lookup_ ? lookup_(numbers, weight) : EmbeddingImpl::forward(numbers);
  }

  /// Of a table that has only a part of its rows, or gives only some of those asked for. Null: it
  /// has and gives all.
  using Lookup = std::function<at::Tensor(const at::Tensor& numbers, const at::Tensor& weight)>;
  void set_lookup(Lookup lookup) { lookup_ = std::move(lookup); }

 private:
  Lookup lookup_;
};
TORCH_MODULE(EmbeddingTable);

}  // namespace plimsoll::train

// The linear layer of a loss in chunks: the logits of a chunk, and what is summed over chunks.
#pragma once

#include "job/transforms/call_writer.h"
#include "job/transforms/linear_loss.h"

namespace plimsoll {

class ChunkedProduct {
 public:
  /// `rows` of all that the layer gets.
  ChunkedProduct(const LinearLoss& loss, const Number& rows, int chunks);

  int chunks() const { return chunks_; }
  /// Of a chunk.
  const Number& rows() const { return rows_; }
  const LinearLoss& loss() const { return loss_; }
  /// Where sums over rows, and what is made of logits, are.
  DType sums() const { return sums_; }
  /// As products read it.
  const TensorUse& weight() const { return weight_; }
  const TensorUse& hidden_sum() const { return hidden_sum_; }
  const TensorUse& bias_sum() const { return bias_sum_; }

  /// Around the chunks: the weight in the type of the products.
  void BeginChunks(CallWriter& write);
  void EndChunks(CallWriter& write);

  /// A chunk of those that are given, in the type of the products; whoever has it frees it.
  TensorUse Logits(CallWriter& write, const TensorUse& hidden) const;
  /// Which rows of a chunk count, and their classes.
  struct Labels {
    TensorUse counts;
    TensorUse classes;
  };
  Labels ChunkOf(CallWriter& write, const TensorUse& labels) const;

  /// What is summed: the gradient of `hidden`, where one is wanted, takes `into` if that is there.
  void MakeSums(CallWriter& write, const TensorUse& hidden, const TensorUse& into);
  /// A gradient of the logits in the type of the products; it takes its place.
  TensorUse Narrow(CallWriter& write, const TensorUse& gradient) const;
  void AddToWeight(CallWriter& write, const TensorUse& gradient, const TensorUse& hidden) const;
  /// All that was summed, by a number.
  void ScaleSums(CallWriter& write, const TensorUse& factor) const;
  /// Into the types of what they are the gradients of.
  void FinishSums(CallWriter& write) const;

 private:
  TensorUse Sum(CallWriter& write, std::string_view op, const TensorUse& gradient, DType type,
                const std::vector<Number>& sizes, const TensorUse& like) const;

  const LinearLoss& loss_;
  const int chunks_;
  DType sums_ = DType::kFloat32;
  Number rows_;
  bool casts_weight_ = false;
  TensorUse weight_, hidden_sum_, weight_sum_, bias_sum_;
};

}  // namespace plimsoll

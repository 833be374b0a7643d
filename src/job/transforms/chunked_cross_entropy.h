// The calls of plimsoll.chunked_cross_entropy (python/plimsoll/applying/chunked_loss.py): the
// gradients of a chunk are computed as soon as its logits are there.
#pragma once

#include "job/transforms/chunked_product.h"

namespace plimsoll {

class CrossEntropyWriter {
 public:
  CrossEntropyWriter(const LinearLoss& loss, const CrossEntropy& kind, int chunks)
      : loss_(loss), kind_(kind), product_(loss, loss.rows, chunks) {}

  void Forward(CallWriter& write);
  void Backward(CallWriter& write);

 private:
  void Chunk(CallWriter& write);
  TensorUse Hidden(CallWriter& write, const TensorUse& counts) const;
  void AddLoss(CallWriter& write, const TensorUse& counts, const TensorUse& own) const;
  void AddHiddenGradient(CallWriter& write, const TensorUse& gradient,
                         const TensorUse& counts) const;

  const LinearLoss& loss_;
  const CrossEntropy& kind_;
  ChunkedProduct product_;
  /// One over the number of rows that count; waits for the backward.
  TensorUse scale_;
};

}  // namespace plimsoll

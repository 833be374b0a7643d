// The calls of plimsoll.chunked_log_probs (python/plimsoll/applying/chunked_log_probs.py): the
// logits of a chunk are computed in the forward and once more in the backward.
#pragma once

#include "job/transforms/chunked_product.h"

namespace plimsoll {

class LogProbsWriter {
 public:
  LogProbsWriter(const LinearLoss& loss, const LogProbabilities& kind, int chunks)
      : loss_(loss), kind_(kind), product_(loss, kind.rows, chunks) {}

  void Forward(CallWriter& write);
  void Backward(CallWriter& write);

 private:
  bool has_entropy() const { return kind_.entropy.storage != kElsewhere; }
  /// Positions were sliced off behind the layer: the rows that are left are copied.
  bool slices() const { return kind_.rows != loss_.rows; }

  TensorUse Result(CallWriter& write, const TensorUse& result) const;
  void GiveResult(CallWriter& write, const TensorUse& made, const TensorUse& result) const;
  void FreeOwn(CallWriter& write) const;
  void ForwardChunk(CallWriter& write) const;
  void BackwardChunk(CallWriter& write) const;
  TensorUse LogProbs(CallWriter& write) const;
  TensorUse OuterOf(CallWriter& write, const TensorUse& counts, const TensorUse& outer) const;
  TensorUse Hidden(CallWriter& write) const;
  void AddEntropy(CallWriter& write, const TensorUse& logs, const TensorUse& counts) const;
  void AddRows(CallWriter& write, const TensorUse& counts, const TensorUse& rows,
               const TensorUse& into) const;
  void OfOwn(CallWriter& write, const TensorUse& logs, const TensorUse& of_own) const;
  void WithEntropy(CallWriter& write, const TensorUse& logs, const TensorUse& of_own,
                   const TensorUse& counts) const;
  void AddGradients(CallWriter& write, const TensorUse& gradient) const;

  const LinearLoss& loss_;
  const LogProbabilities& kind_;
  ChunkedProduct product_;
  /// As they wait for the backward.
  TensorUse hidden_, labels_;
  TensorUse made_, entropy_;
};

}  // namespace plimsoll

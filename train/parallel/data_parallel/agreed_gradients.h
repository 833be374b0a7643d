// Gradients of a data-parallel step that does not fit on one rank: all ranks repeat it with smaller
// micro-batches.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>

#include "train/gradients/micro_batch.h"
#include "train/parallel/data_parallel/data_parallel.h"

namespace plimsoll::train {

struct AgreedGradients {
  /// Of all ranks' rows.
  at::Tensor loss;
  /// With so many rows at once it did fit: what to begin the next step with.
  std::int64_t rows = 1;
  /// So often it did not.
  int repeats = 0;
};

/// As DataParallel::AccumulateGradients for a step that begins without gradients (those that are
/// there are dropped). Where it does not fit on one rank, all undo what they did (gradients,
/// buffers, random numbers) and repeat it with half the rows at once; the result is the same.
/// Throws c10::OutOfMemoryError, on all ranks, if one row is too much on some.
AgreedGradients AccumulateInAgreement(torch::nn::Module& model, Ranks& ranks,
                                      DataParallel& parallel, const LossFunction& loss,
                                      const Batch& batch, Pieces pieces);

}  // namespace plimsoll::train

// When one rank runs out of memory: all repeat the step together, with smaller pieces.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <vector>

#include "train/micro_batch.h"
#include "train/parallel/data_parallel.h"
#include "train/parallel/ranks.h"

namespace plimsoll::train {

/// The ranks on which it does not fit, the same answer on all. A rank that has left, or does not
/// come within the time limit, is a RankError that names it.
std::vector<int> RanksWithoutRoom(Ranks& ranks, bool fits);

struct AgreedGradients {
  /// Of all ranks' rows.
  at::Tensor loss;
  /// With so many rows at once it did fit: what to begin the next step with.
  std::int64_t rows = 1;
  /// So often it did not.
  int repeats = 0;
};

/// As DataParallel::AccumulateGradients for a step that begins without gradients (those that are
/// there are dropped), but each rank computes its own first, then all say whether they could, and
/// only then is anything sent. Where one could not, all undo what they did (gradients, buffers,
/// random numbers) and repeat it with half the rows at once; the result is the same. It costs the
/// overlap of backward and sending.
/// Throws c10::OutOfMemoryError, on all ranks, if one row is too much on some.
AgreedGradients AccumulateInAgreement(torch::nn::Module& model, Ranks& ranks,
                                      DataParallel& parallel, const LossFunction& loss,
                                      const Batch& batch, Pieces pieces);

}  // namespace plimsoll::train

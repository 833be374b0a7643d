// What ranks agree on when something does not work on one of them: to throw together, or to repeat
// the step with smaller pieces.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>

#include "train/micro_batch.h"
#include "train/parallel/data_parallel.h"
#include "train/parallel/ranks.h"

namespace plimsoll::train {

/// Calls the function, in which ranks do something together. Where memory runs out on one of them,
/// all throw c10::OutOfMemoryError, that rank its own.
void DoTogether(Ranks& ranks, const std::function<void()>& function);
/// The same for what each rank does by itself: what one throws, all do, as c10::Error. Nothing but
/// the answer is waited for, and ranks may go on together after it. Before all throw, each calls
/// `undo`.
void DoEach(
    Ranks& ranks, const std::function<void()>& function, const std::function<void()>& undo = [] {});

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

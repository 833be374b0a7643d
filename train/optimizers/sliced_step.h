// A step of torch's own optimizers in little pieces. They make temporaries as large as a parameter,
// and what they changed before memory ran out stays changed; in slices both are small.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>

#include "base/bytes.h"

namespace plimsoll::train {

/// Whether it is one of torch's that go element by element: SGD, Adam, AdamW, RMSprop, Adagrad.
bool CanStepInSlices(const torch::optim::Optimizer& optimizer);

/// The same step, bit for bit, as step(), with all its memory taken.
class SlicedStep {
 public:
  virtual ~SlicedStep() = default;
  /// Needs no more than was there a moment before. Should that be gone, taken by another thread, a
  /// slice is taken back and tried again, and an error says it if that does not help either.
  virtual void Run() = 0;
};

/// Of an optimizer that can step in slices. May throw c10::OutOfMemoryError; nothing was changed
/// then.
std::unique_ptr<SlicedStep> PrepareInSlices(torch::optim::Optimizer& optimizer);

/// What the state of parameters that have none yet will take.
Bytes StateToComeInSlices(torch::optim::Optimizer& optimizer);

}  // namespace plimsoll::train

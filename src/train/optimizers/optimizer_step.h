// A step of the optimizer that happens whole or not at all, also when memory runs out.
#pragma once

#include <torch/optim/optimizer.h>

namespace plimsoll::train {

/// An optimizer that can say beforehand all the memory that a step will need.
class TwoPhaseOptimizer {
 public:
  virtual ~TwoPhaseOptimizer() = default;

  /// Allocates what the step needs. May throw c10::OutOfMemoryError; parameters and state are
  /// untouched either way, and it may be called again.
  virtual void Prepare() = 0;
  /// The step that was prepared, with the gradients of then. Allocates nothing on the device, so
  /// that it cannot stop half way.
  virtual void Commit() = 0;

 protected:
  TwoPhaseOptimizer() = default;
  TwoPhaseOptimizer(TwoPhaseOptimizer&&) = default;
  TwoPhaseOptimizer& operator=(TwoPhaseOptimizer&&) = default;
};

/// One step. When it fails, parameters and state (step counts too) are as before, and the error
/// goes on. Optimizers in two phases pay nothing for it; torch's own have their parameters and
/// state copied first, and one with a state that is not torch's is an error.
void StepOrNothing(torch::optim::Optimizer& optimizer);

/// For step() of an optimizer in two phases: the closure's loss, then both phases.
at::Tensor StepInTwoPhases(TwoPhaseOptimizer& optimizer,
                           const torch::optim::Optimizer::LossClosure& closure);

}  // namespace plimsoll::train

// A step of the optimizer that happens whole or not at all, also when memory runs out.
#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <vector>

#include "base/bytes.h"

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
  /// Forgets what was prepared, and gives its memory back: the step will not be made.
  virtual void Discard() = 0;
  /// What the state of parameters that have none yet will take on their devices.
  virtual Bytes StateToCome() const = 0;
  /// How long a step should keep the host busy with arithmetic, by a small one measured now.
  virtual double HostSeconds() const { return 0; }

 protected:
  TwoPhaseOptimizer() = default;
  TwoPhaseOptimizer(TwoPhaseOptimizer&&) = default;
  TwoPhaseOptimizer& operator=(TwoPhaseOptimizer&&) = default;
};

/// One step. When it fails, parameters and state (step counts too) are as before, and the error
/// goes on. Optimizers in two phases pay nothing for it; torch's own go in slices, bit for bit the
/// same (train/optimizers/sliced_step.h). What is derived from torch's has its parameters and state
/// copied first, and an optimizer with a state that is not torch's is an error.
void StepOrNothing(torch::optim::Optimizer& optimizer);

/// The same for several, each with parameters of its own: all of them or none.
void StepAllOrNothing(const std::vector<torch::optim::Optimizer*>& optimizers);

/// The same, prepared: all memory is taken now, and given back when what is returned goes without
/// having been called. It makes the step, with the gradients of now.
std::function<void()> PrepareAll(const std::vector<torch::optim::Optimizer*>& optimizers);

/// Takes the memory that a step needs and gives it back: throws c10::OutOfMemoryError where it is
/// not there.
void TryStepMemory(const std::vector<torch::optim::Optimizer*>& optimizers);

/// What the state of parameters that have none yet will take on their devices; a guess (twice the
/// parameters) for optimizers that are not known.
Bytes StateToCome(torch::optim::Optimizer& optimizer);

/// How long a step of all should keep the host busy with arithmetic.
double HostSeconds(const std::vector<torch::optim::Optimizer*>& optimizers);

/// The sum of `bytes` over all parameters that will have a state and have none.
template <class Function>
Bytes NewStateBytes(const torch::optim::Optimizer& optimizer, Function bytes) {
  Bytes sum = 0;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
      const bool comes = parameter.requires_grad() && state == optimizer.state().end();
      if (comes) sum += bytes(group.options(), parameter);
    }
  }
  return sum;
}

/// For step() of an optimizer in two phases: the closure's loss, then both phases.
at::Tensor StepInTwoPhases(TwoPhaseOptimizer& optimizer,
                           const torch::optim::Optimizer::LossClosure& closure);

}  // namespace plimsoll::train

// After out-of-memory: everything as it was before the step.
#pragma once

#include <torch/nn/module.h>

#include <exception>
#include <functional>
#include <vector>

#include "train/checkpointing/random_state.h"

namespace plimsoll::train {

/// Whether the error means that memory ran out, also where a library says so in its own words.
bool IsOutOfMemory(const std::exception& error);

/// Made before a step. Undo drops the gradients of the failed attempt and restores what forward
/// changes: random numbers and buffers (running statistics). Parameters are not its business: an
/// optimizer step happens as a whole or not at all (train/optimizers/optimizer_step.h).
class StepUndo {
 public:
  /// Gradients must not be there yet: each step begins without.
  StepUndo(torch::nn::Module& model, c10::Device device);
  /// Where a step begins with something else; `clear` makes them so.
  StepUndo(torch::nn::Module& model, c10::Device device, std::function<void()> clear);

  void Undo();

 private:
  std::function<void()> clear_;
  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> saved_buffers_;
  RandomState random_;
};

/// Drops the gradients of all parameters.
void ClearGradients(torch::nn::Module& model);

}  // namespace plimsoll::train

// The optimizer's step inside of backward: each parameter is updated as soon as its gradient is
// there, and the gradient is given back. At no time are there all gradients.
#pragma once

#include <torch/optim/optimizer.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

namespace plimsoll::train {

/// Not for gradients that have to be seen together first: clipping by their norm, a loss scale. And
/// a backward that fails half way has stepped the parameters it came by, which cannot be undone.
class StepInBackward {
 public:
  using Factory = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

  /// One optimizer a parameter, made by the factory. Hooks stay on the parameters until this goes.
  StepInBackward(const std::vector<at::Tensor>& parameters, const Factory& factory);
  ~StepInBackward();
  StepInBackward(const StepInBackward&) = delete;
  StepInBackward& operator=(const StepInBackward&) = delete;

  /// Off: gradients stay and accumulate, as in all but the last of several micro-batches. On again,
  /// the next backward steps with their sum.
  void set_enabled(bool enabled) { enabled_ = enabled; }
  bool enabled() const { return enabled_; }

  /// In the order of the parameters; for learning rates, say.
  const std::vector<std::unique_ptr<torch::optim::Optimizer>>& optimizers() const {
    return optimizers_;
  }

  /// All optimizers, in one training state. Load the model first.
  void Save(const std::filesystem::path& path) const;
  /// Fails with nothing changed.
  void Load(const std::filesystem::path& path);

 private:
  class Hook;

  bool enabled_ = true;
  std::vector<at::Tensor> parameters_;
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers_;
};

}  // namespace plimsoll::train

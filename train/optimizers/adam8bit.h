// Adam and AdamW with their state in 8 bits: a quarter of the memory. Parameters under 4096
// elements (norms and biases, which are few and delicate) keep theirs in fp32.
#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <memory>
#include <utility>
#include <vector>

#include "train/optimizers/adam8bit_kernels.h"
#include "train/optimizers/optimizer_step.h"

namespace plimsoll::train {

/// The elements lie in the order of the parameter's memory.
struct Adam8bitParamState : public torch::optim::OptimizerCloneableParamState<Adam8bitParamState> {
  TORCH_ARG(std::int64_t, step) = 0;
  /// Codes, or fp32 where there are no scales.
  TORCH_ARG(torch::Tensor, average);
  TORCH_ARG(torch::Tensor, average_scale);
  TORCH_ARG(torch::Tensor, square);
  TORCH_ARG(torch::Tensor, square_scale);
  /// Of the parameter: the order would be another one with others.
  TORCH_ARG(std::vector<std::int64_t>, strides);
};

/// Of a parameter that was not stepped yet.
std::unique_ptr<Adam8bitParamState> NewAdam8bitState(const at::Tensor& parameter,
                                                     c10::Device device);

/// With torch's options; amsgrad is not there.
template <class Options, bool kDecoupled>
class Adam8bitOf final : public torch::optim::Optimizer, public TwoPhaseOptimizer {
 public:
  explicit Adam8bitOf(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                      Options defaults = {})
      : Optimizer(groups, std::make_unique<Options>(defaults)) {}
  explicit Adam8bitOf(std::vector<at::Tensor> parameters, Options defaults = {})
      : Adam8bitOf({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults) {}

  at::Tensor step(LossClosure closure = nullptr) override {
    return StepInTwoPhases(*this, closure);
  }
  void Prepare() override;
  void Commit() override;
  void Discard() override { prepared_ = {}; }
  Bytes StateToCome() const override;

  /// Fail: SaveOptimizer (train/optimizers/optimizer_state.h) does it.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct Prepared {
    std::vector<std::pair<adam8bit::Step, Adam8bitParamState*>> steps;
    std::vector<std::pair<void*, std::unique_ptr<Adam8bitParamState>>> new_states;
    /// One for each device without a kernel of our own. Given back after the step.
    std::vector<adam8bit::Workspace> workspaces;
  };

  void Add(Prepared& prepared, const Options& options, const at::Tensor& parameter);
  Adam8bitParamState& StateOf(Prepared& prepared, const at::Tensor& parameter);

  Prepared prepared_;
};

using Adam8bit = Adam8bitOf<torch::optim::AdamOptions, false>;
using AdamW8bit = Adam8bitOf<torch::optim::AdamWOptions, true>;

extern template class Adam8bitOf<torch::optim::AdamOptions, false>;
extern template class Adam8bitOf<torch::optim::AdamWOptions, true>;

}  // namespace plimsoll::train

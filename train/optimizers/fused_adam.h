// Adam, AdamW and SGD by torch's fused kernels: in place, without temporaries, in two phases.
// Options, state and files are those of torch::optim, so that either can go on where the other
// stopped.
#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <utility>
#include <vector>

#include "train/optimizers/optimizer_step.h"

namespace plimsoll::train {

/// Of Adam and AdamW, which differ in nothing but types and kernel.
template <class Base, class Options, class State>
class FusedAdamOf final : public Base, public TwoPhaseOptimizer {
 public:
  using Base::Base;
  using LossClosure = torch::optim::Optimizer::LossClosure;

  at::Tensor step(LossClosure closure = nullptr) override {
    return StepInTwoPhases(*this, closure);
  }
  void Prepare() override;
  void Commit() override;
  void Discard() override { prepared_ = {}; }
  Bytes StateToCome() const override;

 private:
  /// The kernels read the step count from memory of the device. One serves all parameters that have
  /// seen the same number of steps there.
  struct StepCount {
    std::int64_t steps = 0;
    at::Tensor count;
    at::Tensor one;
  };
  /// What goes through the kernel together.
  struct Bucket {
    const Options* options = nullptr;
    std::size_t step_count = 0;
    std::vector<State*> states;
    std::vector<at::Tensor> parameters, gradients, averages, squares, largest_squares;
  };
  struct Prepared {
    std::vector<StepCount> step_counts;
    std::vector<Bucket> buckets;
    /// Of parameters that have none yet.
    std::vector<std::pair<void*, std::unique_ptr<State>>> new_states;
  };

  void Add(Prepared& prepared, const Options& options, const at::Tensor& parameter);
  State& StateOf(Prepared& prepared, const Options& options, const at::Tensor& parameter);
  std::size_t StepCountOf(Prepared& prepared, c10::Device device, std::int64_t steps);

  std::vector<StepCount> step_counts_;
  Prepared prepared_;
};

using FusedAdam = FusedAdamOf<torch::optim::Adam, torch::optim::AdamOptions,  //
                              torch::optim::AdamParamState>;
using FusedAdamW =
    FusedAdamOf<torch::optim::AdamW, torch::optim::AdamWOptions, torch::optim::AdamWParamState>;

class FusedSgd final : public torch::optim::SGD, public TwoPhaseOptimizer {
 public:
  using SGD::SGD;

  at::Tensor step(LossClosure closure = nullptr) override {
    return StepInTwoPhases(*this, closure);
  }
  void Prepare() override;
  void Commit() override;
  void Discard() override { prepared_ = {}; }
  Bytes StateToCome() const override;

 private:
  struct Bucket {
    const torch::optim::SGDOptions* options = nullptr;
    bool first = false;
    std::vector<at::Tensor> parameters, gradients, momenta;
    /// With the keys of their parameters.
    std::vector<std::pair<void*, at::Tensor>> new_momenta;
  };

  void Add(std::vector<Bucket>& buckets, const torch::optim::SGDOptions& options,
           const at::Tensor& parameter);

  std::vector<Bucket> prepared_;
};

extern template class FusedAdamOf<torch::optim::Adam, torch::optim::AdamOptions,
                                  torch::optim::AdamParamState>;
extern template class FusedAdamOf<torch::optim::AdamW, torch::optim::AdamWOptions,
                                  torch::optim::AdamWParamState>;

}  // namespace plimsoll::train

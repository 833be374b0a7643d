// Adam and AdamW whose state lies on the host: gradients go there, are stepped there, and the
// parameters come back. The device holds parameters and gradients, nothing else.
#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "train/optimizer_step.h"

namespace plimsoll::train {

/// Options, state and files are torch's. For parameters in bf16 or fp16 the host keeps a master
/// copy in fp32, which is in the file too; load the model before the optimizer, since a parameter
/// that someone else has changed is copied to its master anew.
template <class Base, class Options, class State>
class HostAdamOf final : public Base, public TwoPhaseOptimizer {
 public:
  using Base::Base;
  using LossClosure = torch::optim::Optimizer::LossClosure;

  at::Tensor step(LossClosure closure = nullptr) override {
    return StepInTwoPhases(*this, closure);
  }
  /// Allocates on the host, and on the device only where a gradient lies in another order than its
  /// parameter.
  void Prepare() override;
  void Commit() override;

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct Master {
    at::Tensor values;
    /// Of the parameter when the two were last the same.
    std::uint32_t version = 0;
  };
  struct Job {
    const Options* options = nullptr;
    at::Tensor parameter;
    /// Flat.
    at::Tensor device_parameter, device_gradient;
    State* state = nullptr;
    /// Null for fp32.
    Master* master = nullptr;
    bool reads_parameter = true;
  };
  /// Where one parameter passes through. There are two: while one is stepped, the next is fetched.
  struct Staging {
    /// In fp32.
    at::Tensor parameter, gradient;
    /// In the parameter's type, for what is not fp32.
    at::Tensor narrow_parameter, narrow_gradient;
  };
  struct Prepared {
    std::vector<Job> jobs;
    std::vector<std::pair<void*, std::unique_ptr<State>>> new_states;
    std::vector<std::pair<void*, std::unique_ptr<Master>>> new_masters;
  };

  void Add(Prepared& prepared, const Options& options, const at::Tensor& parameter);
  State& StateOf(Prepared& prepared, const Options& options, const at::Tensor& parameter);
  Master& MasterOf(Prepared& prepared, const at::Tensor& parameter);
  void MakeStagings(const Prepared& prepared);
  void Fetch(const Job& job, Staging& staging);
  void StepOnHost(const Job& job, Staging& staging);
  void Return(const Job& job, Staging& staging);

  std::unordered_map<void*, std::unique_ptr<Master>> masters_;
  Staging stagings_[2];
  /// The kernel reads the step's number from here.
  at::Tensor step_count_;
  Prepared prepared_;
};

using HostAdam = HostAdamOf<torch::optim::Adam, torch::optim::AdamOptions,  //
                            torch::optim::AdamParamState>;
using HostAdamW =
    HostAdamOf<torch::optim::AdamW, torch::optim::AdamWOptions, torch::optim::AdamWParamState>;

extern template class HostAdamOf<torch::optim::Adam, torch::optim::AdamOptions,
                                 torch::optim::AdamParamState>;
extern template class HostAdamOf<torch::optim::AdamW, torch::optim::AdamWOptions,
                                 torch::optim::AdamWParamState>;

}  // namespace plimsoll::train

// Adam and AdamW whose state lies on the host: gradients go there, are stepped there, and the
// parameters come back. The device holds parameters and gradients, nothing else.
#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "train/optimizers/optimizer_step.h"

namespace plimsoll::train {

/// In fp32, with the parameter's sizes and in its order, not from the budget.
at::Tensor HostLike(const at::Tensor& parameter);

/// The fp32 copies that a host keeps of parameters in bf16 or fp16, to be saved and loaded.
class MastersOnHost {
 public:
  /// Each with its parameter.
  using Masters = std::vector<std::pair<at::Tensor, at::Tensor>>;

  virtual ~MastersOnHost() = default;
  /// None for a parameter in fp32, or that was not stepped yet.
  virtual at::Tensor MasterOf(const at::Tensor& parameter) const = 0;
  /// In place of all that were there. The parameters must have their values already: one that is
  /// changed later is copied to its master anew.
  virtual void SetMasters(const Masters& masters) = 0;

 protected:
  MastersOnHost() = default;
  MastersOnHost(MastersOnHost&&) = default;
  MastersOnHost& operator=(MastersOnHost&&) = default;
};

/// Options and state are torch's, and for parameters in bf16 or fp16 a master copy in fp32.
template <class Base, class Options, class State>
class HostAdamOf final : public Base, public TwoPhaseOptimizer, public MastersOnHost {
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
  void Discard() override { prepared_ = {}; }
  Bytes StateToCome() const override { return 0; }
  double HostSeconds() const override;

  at::Tensor MasterOf(const at::Tensor& parameter) const override;
  void SetMasters(const Masters& masters) override;

  /// Fail: an archive would lose the masters. SaveOptimizer (train/optimizers/optimizer_state.h)
  /// keeps them.
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
  Master& TakeMaster(Prepared& prepared, const at::Tensor& parameter);
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

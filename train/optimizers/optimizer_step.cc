#include "train/optimizers/optimizer_step.h"

#include <torch/csrc/autograd/grad_mode.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <utility>
#include <vector>

#include "train/optimizers/sliced_step.h"

namespace plimsoll::train {
namespace {

namespace optim = torch::optim;

using StateMap = std::decay_t<decltype(std::declval<optim::Optimizer&>().state())>;

at::Tensor CopyOf(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.detach().clone() : tensor;
}

/// The state's own clone() shares its tensors, so each kind is taken apart here.
void CopyTensors(optim::AdamParamState& state) {
  state.exp_avg(CopyOf(state.exp_avg()));
  state.exp_avg_sq(CopyOf(state.exp_avg_sq()));
  state.max_exp_avg_sq(CopyOf(state.max_exp_avg_sq()));
}
void CopyTensors(optim::AdamWParamState& state) {
  state.exp_avg(CopyOf(state.exp_avg()));
  state.exp_avg_sq(CopyOf(state.exp_avg_sq()));
  state.max_exp_avg_sq(CopyOf(state.max_exp_avg_sq()));
}
void CopyTensors(optim::SGDParamState& state) {
  state.momentum_buffer(CopyOf(state.momentum_buffer()));
}
void CopyTensors(optim::RMSpropParamState& state) {
  state.square_avg(CopyOf(state.square_avg()));
  state.momentum_buffer(CopyOf(state.momentum_buffer()));
  state.grad_avg(CopyOf(state.grad_avg()));
}
void CopyTensors(optim::AdagradParamState& state) { state.sum(CopyOf(state.sum())); }

template <class State>
bool CopyTensorsIfA(optim::OptimizerParamState& state) {
  auto* const known = dynamic_cast<State*>(&state);
  if (known != nullptr) CopyTensors(*known);
  return known != nullptr;
}

std::unique_ptr<optim::OptimizerParamState> CopyOf(const optim::OptimizerParamState& state) {
  std::unique_ptr<optim::OptimizerParamState> copy = state.clone();
  const bool known = CopyTensorsIfA<optim::AdamParamState>(*copy) ||
                     CopyTensorsIfA<optim::AdamWParamState>(*copy) ||
                     CopyTensorsIfA<optim::SGDParamState>(*copy) ||
                     CopyTensorsIfA<optim::RMSpropParamState>(*copy) ||
                     CopyTensorsIfA<optim::AdagradParamState>(*copy);
  TORCH_CHECK(known,
              "the state of this optimizer cannot be copied, so that its step could not be taken "
              "back; let it derive from plimsoll::train::TwoPhaseOptimizer");
  return copy;
}

/// Parameters and state at one moment.
class Before {
 public:
  explicit Before(optim::Optimizer& optimizer) : optimizer_(optimizer) {
    for (const auto& group : optimizer.param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        if (parameter.grad().defined()) parameters_.emplace_back(parameter, CopyOf(parameter));
      }
    }
    for (const auto& [key, state] : optimizer.state()) state_[key] = CopyOf(*state);
  }

  /// Needs no memory: there may be none.
  void Restore() {
    const torch::NoGradGuard no_grad;
    for (auto& [parameter, copy] : parameters_) parameter.copy_(copy);
    optimizer_.state() = std::move(state_);
  }

 private:
  optim::Optimizer& optimizer_;
  std::vector<std::pair<at::Tensor, at::Tensor>> parameters_;
  StateMap state_;
};

/// One step of each. All memory is taken when it is made, and given back if it does not run.
class Steps {
 public:
  explicit Steps(const std::vector<optim::Optimizer*>& optimizers) {
    try {
      for (optim::Optimizer* const optimizer : optimizers) Prepare(*optimizer);
    } catch (...) {
      Discard();
      throw;
    }
  }
  ~Steps() { Discard(); }
  Steps(const Steps&) = delete;
  Steps& operator=(const Steps&) = delete;

  void Run() {
    // Those that may still fail go first.
    try {
      for (auto& [optimizer, before] : copied_) optimizer->step();
    } catch (...) {
      for (auto& [optimizer, before] : copied_) before.Restore();
      throw;
    }
    for (TwoPhaseOptimizer* const optimizer : prepared_) optimizer->Commit();
    prepared_.clear();
    for (const auto& step : sliced_) step->Run();
  }

 private:
  void Prepare(optim::Optimizer& optimizer) {
    if (auto* const two_phase = dynamic_cast<TwoPhaseOptimizer*>(&optimizer)) {
      two_phase->Prepare();
      prepared_.push_back(two_phase);
    } else if (CanStepInSlices(optimizer)) {
      sliced_.push_back(PrepareInSlices(optimizer));
    } else {
      copied_.emplace_back(&optimizer, Before(optimizer));
    }
  }
  void Discard() {
    for (TwoPhaseOptimizer* const optimizer : prepared_) optimizer->Discard();
  }

  std::vector<TwoPhaseOptimizer*> prepared_;
  std::vector<std::unique_ptr<SlicedStep>> sliced_;
  std::vector<std::pair<optim::Optimizer*, Before>> copied_;
};

}  // namespace

void StepOrNothing(optim::Optimizer& optimizer) { StepAllOrNothing({&optimizer}); }

void StepAllOrNothing(const std::vector<optim::Optimizer*>& optimizers) {
  PrepareAll(optimizers)();
}

std::function<void()> PrepareAll(const std::vector<optim::Optimizer*>& optimizers) {
  return [steps = std::make_shared<Steps>(optimizers)] { steps->Run(); };
}

void TryStepMemory(const std::vector<optim::Optimizer*>& optimizers) {
  const Steps steps(optimizers);
}

double HostSeconds(const std::vector<optim::Optimizer*>& optimizers) {
  double seconds = 0;
  for (const optim::Optimizer* const optimizer : optimizers) {
    const auto* const known = dynamic_cast<const TwoPhaseOptimizer*>(optimizer);
    if (known != nullptr) seconds += known->HostSeconds();
  }
  return seconds;
}

Bytes StateToCome(optim::Optimizer& optimizer) {
  if (const auto* two_phase = dynamic_cast<const TwoPhaseOptimizer*>(&optimizer)) {
    return two_phase->StateToCome();
  }
  if (CanStepInSlices(optimizer)) return StateToComeInSlices(optimizer);
  if (!optimizer.state().empty()) return 0;
  Bytes bytes = 0;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      bytes += 2 * static_cast<Bytes>(parameter.nbytes());
    }
  }
  return bytes;
}

at::Tensor StepInTwoPhases(TwoPhaseOptimizer& optimizer,
                           const optim::Optimizer::LossClosure& closure) {
  at::Tensor loss;
  if (closure != nullptr) {
    const at::AutoGradMode with_grad(true);
    loss = closure();
  }
  optimizer.Prepare();
  optimizer.Commit();
  return loss;
}

}  // namespace plimsoll::train

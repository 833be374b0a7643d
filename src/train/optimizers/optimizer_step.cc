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

}  // namespace

void StepOrNothing(optim::Optimizer& optimizer) {
  if (auto* const two_phase = dynamic_cast<TwoPhaseOptimizer*>(&optimizer)) {
    two_phase->Prepare();
    two_phase->Commit();
    return;
  }
  Before before(optimizer);
  try {
    optimizer.step();
  } catch (...) {
    before.Restore();
    throw;
  }
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

#include "train/optimizers/adam8bit.h"

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>

#include "train/optimizers/memory_order.h"

namespace plimsoll::train {
namespace {

namespace optim = torch::optim;

constexpr std::int64_t kSmallestInCodes = 4096;

at::Tensor On(c10::Device device, const at::Tensor& tensor) {
  return tensor.defined() ? tensor.to(device) : tensor;
}

}  // namespace

std::unique_ptr<Adam8bitParamState> NewAdam8bitState(const at::Tensor& parameter,
                                                     c10::Device device) {
  const std::int64_t elements = parameter.numel();
  const auto options = at::TensorOptions(at::kFloat).device(device);
  auto state = std::make_unique<Adam8bitParamState>();
  state->strides(parameter.strides().vec());
  if (elements < kSmallestInCodes) {
    state->average(at::zeros({elements}, options));
    state->square(at::zeros({elements}, options));
    return state;
  }
  const std::int64_t blocks = adam8bit::BlocksOf(elements);
  state->average(at::zeros({blocks * adam8bit::kBlock}, options.dtype(at::kChar)));
  state->average_scale(at::zeros({blocks}, options));
  state->square(at::zeros({blocks * adam8bit::kBlock}, options.dtype(at::kByte)));
  state->square_scale(at::zeros({blocks}, options));
  return state;
}

template <class Options, bool kDecoupled>
void Adam8bitOf<Options, kDecoupled>::Prepare() {
  const torch::NoGradGuard no_grad;
  Discard();
  Prepared prepared;
  for (auto& group : param_groups()) {
    const auto& options = static_cast<const Options&>(group.options());
    TORCH_CHECK(!options.amsgrad(), "8-bit Adam has no amsgrad");
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined() || parameter.numel() == 0) continue;
      Add(prepared, options, parameter);
    }
  }
  for (const auto& [step, state] : prepared.steps) {
    const c10::Device device = step.parameter.device();
    const auto there = [&](const auto& workspace) { return workspace.device() == device; };
    const bool needs_none = device.is_cpu() || adam8bit::HasCudaKernel(step.parameter);
    if (needs_none || std::ranges::any_of(prepared.workspaces, there)) continue;
    std::int64_t largest = 0;
    for (const auto& [other, unused] : prepared.steps) {
      if (other.parameter.device() == device) largest = std::max(largest, other.parameter.numel());
    }
    prepared.workspaces.emplace_back(device, largest);
  }
  prepared_ = std::move(prepared);
}

template <class Options, bool kDecoupled>
void Adam8bitOf<Options, kDecoupled>::Add(Prepared& prepared, const Options& options,
                                          const at::Tensor& parameter) {
  const at::Tensor gradient = GradientInOrder(parameter);
  Adam8bitParamState& state = StateOf(prepared, parameter);
  const auto [beta1, beta2] = options.betas();
  prepared.steps.emplace_back(adam8bit::Step{.parameter = Flat(parameter),
                                             .gradient = Flat(gradient),
                                             .average = state.average(),
                                             .average_scale = state.average_scale(),
                                             .square = state.square(),
                                             .square_scale = state.square_scale(),
                                             .number = state.step() + 1,
                                             .learning_rate = options.lr(),
                                             .beta1 = beta1,
                                             .beta2 = beta2,
                                             .epsilon = options.eps(),
                                             .weight_decay = options.weight_decay(),
                                             .decoupled = kDecoupled},
                              &state);
}

template <class Options, bool kDecoupled>
Adam8bitParamState& Adam8bitOf<Options, kDecoupled>::StateOf(Prepared& prepared,
                                                             const at::Tensor& parameter) {
  void* const key = parameter.unsafeGetTensorImpl();
  const auto found = state_.find(key);
  if (found == state_.end()) {
    return *prepared.new_states.emplace_back(key, NewAdam8bitState(parameter, parameter.device()))
                .second;
  }
  auto& state = static_cast<Adam8bitParamState&>(*found->second);
  TORCH_CHECK(parameter.strides() == state.strides(),
              "the 8-bit state of a parameter is for strides ", state.strides(),
              " and the parameter has ", parameter.strides(),
              " now: load the state after the model has its memory format");
  // As loaded from a file it may lie elsewhere.
  state.average(On(parameter.device(), state.average()));
  state.average_scale(On(parameter.device(), state.average_scale()));
  state.square(On(parameter.device(), state.square()));
  state.square_scale(On(parameter.device(), state.square_scale()));
  return state;
}

template <class Options, bool kDecoupled>
void Adam8bitOf<Options, kDecoupled>::Commit() {
  const torch::NoGradGuard no_grad;
  Prepared prepared = std::exchange(prepared_, {});
  for (auto& [key, state] : prepared.new_states) state_[key] = std::move(state);
  for (const auto& [step, state] : prepared.steps) {
    const c10::Device device = step.parameter.device();
    if (device.is_cpu()) {
      adam8bit::RunOnCpu(step);
    } else if (adam8bit::HasCudaKernel(step.parameter)) {
      adam8bit::RunOnCuda(step);
    } else {
      const auto there = [&](const auto& workspace) { return workspace.device() == device; };
      std::ranges::find_if(prepared.workspaces, there)->Run(step);
    }
    state->step(step.number);
  }
}

template <class Options, bool kDecoupled>
Bytes Adam8bitOf<Options, kDecoupled>::StateToCome() const {
  return NewStateBytes(*this, [](const optim::OptimizerOptions&, const at::Tensor& one) {
    const auto state = NewAdam8bitState(one, c10::kMeta);
    Bytes bytes = 0;
    for (const at::Tensor* tensor :
         {&state->average(), &state->average_scale(), &state->square(), &state->square_scale()}) {
      if (tensor->defined()) bytes += static_cast<Bytes>(tensor->nbytes());
    }
    return bytes;
  });
}

template <class Options, bool kDecoupled>
void Adam8bitOf<Options, kDecoupled>::save(torch::serialize::OutputArchive&) const {
  TORCH_CHECK(false, "8-bit Adam is saved by plimsoll::train::SaveOptimizer");
}

template <class Options, bool kDecoupled>
void Adam8bitOf<Options, kDecoupled>::load(torch::serialize::InputArchive&) {
  TORCH_CHECK(false, "8-bit Adam is loaded by plimsoll::train::LoadOptimizer");
}

template class Adam8bitOf<optim::AdamOptions, false>;
template class Adam8bitOf<optim::AdamWOptions, true>;

}  // namespace plimsoll::train

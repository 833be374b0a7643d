#include "train/optimizers/fused_adam.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <type_traits>
#include <utility>

#include "train/optimizers/memory_order.h"

namespace plimsoll::train {
namespace {

namespace optim = torch::optim;

/// Where the fused kernels can take it together with the others of the bucket.
template <class Bucket>
bool Joins(const Bucket& bucket, const at::Tensor& parameter) {
  const at::Tensor& first = bucket.parameters.front();
  return first.device() == parameter.device() && first.scalar_type() == parameter.scalar_type();
}

/// Parameters of all groups that have a gradient, with the options of their group.
template <class Options, class Function>
void ForEachWithGradient(std::vector<optim::OptimizerParamGroup>& groups, Function function) {
  for (auto& group : groups) {
    const auto& options = static_cast<const Options&>(group.options());
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.grad().defined() && parameter.numel() > 0) function(options, parameter);
    }
  }
}

}  // namespace

template <class Base, class Options, class State>
void FusedAdamOf<Base, Options, State>::Prepare() {
  const torch::NoGradGuard no_grad;
  Discard();
  Prepared prepared{.step_counts = step_counts_, .buckets = {}, .new_states = {}};
  ForEachWithGradient<Options>(this->param_groups(),
                               [&](const Options& options, const at::Tensor& parameter) {
                                 Add(prepared, options, parameter);
                               });
  prepared_ = std::move(prepared);
}

template <class Base, class Options, class State>
void FusedAdamOf<Base, Options, State>::Add(Prepared& prepared, const Options& options,
                                            const at::Tensor& parameter) {
  const at::Tensor gradient = GradientInOrder(parameter);
  State& state = StateOf(prepared, options, parameter);
  const std::size_t count = StepCountOf(prepared, parameter.device(), state.step());
  Bucket* found = nullptr;
  for (Bucket& bucket : prepared.buckets) {
    const bool same = bucket.options == &options && bucket.step_count == count;
    if (same && Joins(bucket, parameter)) found = &bucket;
  }
  if (found == nullptr) {
    found = &prepared.buckets.emplace_back();
    found->options = &options;
    found->step_count = count;
  }
  found->states.push_back(&state);
  // Flat, because the CPU's kernel copies what is not contiguous.
  found->parameters.push_back(Flat(parameter));
  found->gradients.push_back(Flat(gradient));
  found->averages.push_back(Flat(state.exp_avg()));
  found->squares.push_back(Flat(state.exp_avg_sq()));
  if (options.amsgrad()) found->largest_squares.push_back(Flat(state.max_exp_avg_sq()));
}

template <class Base, class Options, class State>
State& FusedAdamOf<Base, Options, State>::StateOf(Prepared& prepared, const Options& options,
                                                  const at::Tensor& parameter) {
  void* const key = parameter.unsafeGetTensorImpl();
  const auto found = this->state_.find(key);
  if (found != this->state_.end()) {
    auto& state = static_cast<State&>(*found->second);
    // As loaded from a file they may lie elsewhere. The values stay, so this may be done here.
    state.exp_avg(InOrderOf(state.exp_avg(), parameter));
    state.exp_avg_sq(InOrderOf(state.exp_avg_sq(), parameter));
    if (options.amsgrad()) state.max_exp_avg_sq(InOrderOf(state.max_exp_avg_sq(), parameter));
    return state;
  }
  auto state = std::make_unique<State>();
  state->step(0);
  state->exp_avg(at::zeros_like(parameter));
  state->exp_avg_sq(at::zeros_like(parameter));
  if (options.amsgrad()) state->max_exp_avg_sq(at::zeros_like(parameter));
  return *prepared.new_states.emplace_back(key, std::move(state)).second;
}

template <class Base, class Options, class State>
std::size_t FusedAdamOf<Base, Options, State>::StepCountOf(Prepared& prepared, c10::Device device,
                                                           std::int64_t steps) {
  for (std::size_t i = 0; i < prepared.step_counts.size(); ++i) {
    const StepCount& known = prepared.step_counts[i];
    if (known.steps == steps && known.count.device() == device) return i;
  }
  const auto options = at::TensorOptions(at::kFloat).device(device);
  prepared.step_counts.push_back(
      {.steps = steps,
       .count = at::full({}, static_cast<double>(steps), options),
       // Where the device is the CPU, adding a number would allocate a tensor for it.
       .one = at::full({}, 1.0, options)});
  return prepared.step_counts.size() - 1;
}

template <class Base, class Options, class State>
void FusedAdamOf<Base, Options, State>::Commit() {
  const torch::NoGradGuard no_grad;
  Prepared prepared = std::exchange(prepared_, {});
  for (auto& [key, state] : prepared.new_states) this->state_[key] = std::move(state);
  std::vector<StepCount> used;
  std::vector<char> stepped(prepared.step_counts.size(), 0);
  for (const Bucket& bucket : prepared.buckets) {
    StepCount& count = prepared.step_counts[bucket.step_count];
    if (!std::exchange(stepped[bucket.step_count], 1)) {
      count.count.add_(count.one);
      ++count.steps;
      used.push_back(count);
    }
    const std::vector<at::Tensor> counts(bucket.parameters.size(), count.count);
    const Options& options = *bucket.options;
    const auto [beta1, beta2] = options.betas();
    const auto call = [&, first = beta1, second = beta2](auto kernel) {
      kernel(bucket.parameters, bucket.gradients, bucket.averages, bucket.squares,
             bucket.largest_squares, counts, options.lr(), first, second, options.weight_decay(),
             options.eps(), options.amsgrad(), /*maximize=*/false, std::nullopt, std::nullopt);
    };
    if constexpr (std::is_same_v<Base, optim::AdamW>) {
      call([](auto&&... arguments) { at::_fused_adamw_(arguments...); });
    } else {
      call([](auto&&... arguments) { at::_fused_adam_(arguments...); });
    }
    for (State* const state : bucket.states) state->step(count.steps);
  }
  step_counts_ = std::move(used);
}

template <class Base, class Options, class State>
Bytes FusedAdamOf<Base, Options, State>::StateToCome() const {
  return NewStateBytes(*this, [](const optim::OptimizerOptions& options, const at::Tensor& one) {
    const Bytes tensors = static_cast<const Options&>(options).amsgrad() ? 3 : 2;
    return tensors * static_cast<Bytes>(one.nbytes());
  });
}

template class FusedAdamOf<optim::Adam, optim::AdamOptions, optim::AdamParamState>;
template class FusedAdamOf<optim::AdamW, optim::AdamWOptions, optim::AdamWParamState>;

void FusedSgd::Prepare() {
  const torch::NoGradGuard no_grad;
  Discard();
  std::vector<Bucket> buckets;
  ForEachWithGradient<optim::SGDOptions>(
      param_groups(), [&](const optim::SGDOptions& options, const at::Tensor& parameter) {
        Add(buckets, options, parameter);
      });
  prepared_ = std::move(buckets);
}

void FusedSgd::Add(std::vector<Bucket>& buckets, const optim::SGDOptions& options,
                   const at::Tensor& parameter) {
  const at::Tensor gradient = GradientInOrder(parameter);
  const bool with_momentum = options.momentum() != 0;
  const auto state = state_.find(parameter.unsafeGetTensorImpl());
  at::Tensor momentum;
  if (with_momentum && state != state_.end()) {
    auto& known = static_cast<optim::SGDParamState&>(*state->second);
    known.momentum_buffer(InOrderOf(known.momentum_buffer(), parameter));
    momentum = known.momentum_buffer();
  }
  const bool first = with_momentum && !momentum.defined();
  if (first) momentum = at::empty_like(parameter);
  Bucket* found = nullptr;
  for (Bucket& bucket : buckets) {
    const bool same = bucket.options == &options && bucket.first == first;
    if (same && Joins(bucket, parameter)) found = &bucket;
  }
  if (found == nullptr) {
    found = &buckets.emplace_back();
    found->options = &options;
    found->first = first;
  }
  // Flat, because the CPU's kernel copies what is not contiguous.
  found->parameters.push_back(Flat(parameter));
  found->gradients.push_back(Flat(gradient));
  if (!with_momentum) return;
  found->momenta.push_back(Flat(momentum));
  if (first) found->new_momenta.emplace_back(parameter.unsafeGetTensorImpl(), momentum);
}

Bytes FusedSgd::StateToCome() const {
  return NewStateBytes(*this, [](const optim::OptimizerOptions& options, const at::Tensor& one) {
    const bool momentum = static_cast<const optim::SGDOptions&>(options).momentum() != 0;
    return momentum ? static_cast<Bytes>(one.nbytes()) : Bytes{0};
  });
}

void FusedSgd::Commit() {
  const torch::NoGradGuard no_grad;
  const std::vector<Bucket> buckets = std::exchange(prepared_, {});
  for (const Bucket& bucket : buckets) {
    const optim::SGDOptions& options = *bucket.options;
    at::_fused_sgd_(bucket.parameters, bucket.gradients, bucket.momenta, options.weight_decay(),
                    options.momentum(), options.lr(), options.dampening(), options.nesterov(),
                    /*maximize=*/false, bucket.first);
    for (const auto& [key, momentum] : bucket.new_momenta) {
      auto state = std::make_unique<optim::SGDParamState>();
      state->momentum_buffer(momentum);
      state_[key] = std::move(state);
    }
  }
}

}  // namespace plimsoll::train

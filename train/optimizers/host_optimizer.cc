#include "train/optimizers/host_optimizer.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <type_traits>

#include "train/budget/host_memory.h"
#include "train/common/wall_clock.h"
#include "train/optimizers/memory_order.h"

namespace plimsoll::train {
namespace {

namespace optim = torch::optim;

at::Tensor HostZerosLike(const at::Tensor& parameter) { return HostLike(parameter).zero_(); }

bool IsNarrow(const at::Tensor& parameter) {
  return parameter.scalar_type() == at::kHalf || parameter.scalar_type() == at::kBFloat16;
}

/// Grows the buffer where it is too small.
void Reserve(at::Tensor& buffer, std::int64_t elements, at::ScalarType dtype) {
  if (buffer.defined() && buffer.numel() >= elements) return;
  buffer = HostTensor({elements}, dtype, /*pinned=*/true);
}

at::Tensor First(const at::Tensor& buffer, const at::Tensor& flat) {
  return buffer.narrow(0, 0, flat.numel());
}

/// bf16 and fp16 have the same size, so one buffer serves both.
at::Tensor FirstAs(const at::Tensor& buffer, const at::Tensor& flat) {
  return First(buffer, flat).view(flat.scalar_type());
}

/// What was asked of a device so far.
class Fence {
 public:
  explicit Fence(c10::Device device) {
    if (device.is_cpu()) return;
    const c10::impl::VirtualGuardImpl guard(device.type());
    event_.emplace(device.type());
    event_->record(guard.getStream(device));
  }
  void Wait() const {
    if (event_) event_->synchronize();
  }

 private:
  std::optional<c10::Event> event_;
};

/// What the kernel takes for an element, on elements of no use.
double SecondsAnElement(std::int64_t elements) {
  const auto zeros = [&] { return HostTensor({elements}, at::kFloat, /*pinned=*/false).zero_(); };
  const at::Tensor parameters[] = {zeros()}, gradients[] = {zeros()};
  const at::Tensor averages[] = {zeros()}, squares[] = {zeros()};
  const at::Tensor counts[] = {HostTensor({}, at::kFloat, /*pinned=*/false).fill_(1)};
  double least = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 2; ++round) {
    const double begin = Seconds();
    at::_fused_adamw_(parameters, gradients, averages, squares, at::TensorList(), counts,
                      /*lr=*/0.0, /*beta1=*/0.9, /*beta2=*/0.999, /*weight_decay=*/0.0,
                      /*eps=*/1e-8, /*amsgrad=*/false, /*maximize=*/false);
    least = std::min(least, Seconds() - begin);
  }
  return least / static_cast<double>(elements);
}

}  // namespace

at::Tensor HostLike(const at::Tensor& parameter) {
  return HostTensor({parameter.numel()}, at::kFloat, /*pinned=*/false)
      .as_strided(parameter.sizes(), parameter.strides());
}

template <class Base, class Options, class State>
void HostAdamOf<Base, Options, State>::Prepare() {
  const torch::NoGradGuard no_grad;
  Discard();
  Prepared prepared;
  for (auto& group : this->param_groups()) {
    const auto& options = static_cast<const Options&>(group.options());
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined() || parameter.numel() == 0) continue;
      Add(prepared, options, parameter);
    }
  }
  MakeStagings(prepared);
  prepared_ = std::move(prepared);
}

template <class Base, class Options, class State>
double HostAdamOf<Base, Options, State>::HostSeconds() const {
  // More than caches hold: the rate is that of memory.
  constexpr std::int64_t kSmall = 32 << 20;
  std::int64_t elements = 0;
  for (const auto& group : this->param_groups()) {
    for (const at::Tensor& parameter : group.params()) elements += parameter.numel();
  }
  if (elements == 0) return 0;
  return static_cast<double>(elements) * SecondsAnElement(std::min(elements, kSmall));
}

template <class Base, class Options, class State>
void HostAdamOf<Base, Options, State>::Add(Prepared& prepared, const Options& options,
                                           const at::Tensor& parameter) {
  TORCH_CHECK(IsNarrow(parameter) || parameter.scalar_type() == at::kFloat,
              "an optimizer on the host steps parameters in fp32, bf16 and fp16, not ",
              parameter.dtype());
  TORCH_CHECK(
      prepared.jobs.empty() || prepared.jobs.front().parameter.device() == parameter.device(),
      "an optimizer on the host steps parameters of one device");
  Job job{.options = &options, .parameter = parameter};
  job.device_gradient = Flat(GradientInOrder(parameter));
  job.device_parameter = Flat(parameter);
  job.state = &StateOf(prepared, options, parameter);
  if (IsNarrow(parameter)) {
    job.master = &TakeMaster(prepared, parameter);
    job.reads_parameter = !masters_.contains(parameter.unsafeGetTensorImpl()) ||
                          job.master->version != static_cast<std::uint32_t>(parameter._version());
  }
  prepared.jobs.push_back(std::move(job));
}

template <class Base, class Options, class State>
State& HostAdamOf<Base, Options, State>::StateOf(Prepared& prepared, const Options& options,
                                                 const at::Tensor& parameter) {
  void* const key = parameter.unsafeGetTensorImpl();
  const auto found = this->state_.find(key);
  if (found != this->state_.end()) return static_cast<State&>(*found->second);
  auto state = std::make_unique<State>();
  state->step(0);
  state->exp_avg(HostZerosLike(parameter));
  state->exp_avg_sq(HostZerosLike(parameter));
  if (options.amsgrad()) state->max_exp_avg_sq(HostZerosLike(parameter));
  return *prepared.new_states.emplace_back(key, std::move(state)).second;
}

template <class Base, class Options, class State>
auto HostAdamOf<Base, Options, State>::TakeMaster(Prepared& prepared, const at::Tensor& parameter)
    -> Master& {
  void* const key = parameter.unsafeGetTensorImpl();
  const auto found = masters_.find(key);
  if (found != masters_.end()) return *found->second;
  auto master = std::make_unique<Master>();
  master->values = HostLike(parameter);
  return *prepared.new_masters.emplace_back(key, std::move(master)).second;
}

template <class Base, class Options, class State>
void HostAdamOf<Base, Options, State>::MakeStagings(const Prepared& prepared) {
  std::int64_t largest = 1;
  std::int64_t largest_narrow = 0;
  for (const Job& job : prepared.jobs) {
    largest = std::max(largest, job.parameter.numel());
    if (IsNarrow(job.parameter)) largest_narrow = std::max(largest_narrow, job.parameter.numel());
  }
  for (Staging& staging : stagings_) {
    Reserve(staging.parameter, largest, at::kFloat);
    Reserve(staging.gradient, largest, at::kFloat);
    if (largest_narrow == 0) continue;
    Reserve(staging.narrow_parameter, largest_narrow, at::kBFloat16);
    Reserve(staging.narrow_gradient, largest_narrow, at::kBFloat16);
  }
  if (!step_count_.defined()) step_count_ = HostTensor({}, at::kFloat, /*pinned=*/false);
}

template <class Base, class Options, class State>
void HostAdamOf<Base, Options, State>::Commit() {
  const torch::NoGradGuard no_grad;
  Prepared prepared = std::exchange(prepared_, {});
  for (auto& [key, state] : prepared.new_states) this->state_[key] = std::move(state);
  for (auto& [key, master] : prepared.new_masters) masters_[key] = std::move(master);
  const auto fetch = [&](std::size_t i) {
    Fetch(prepared.jobs[i], stagings_[i % 2]);
    return Fence(prepared.jobs[i].parameter.device());
  };
  std::optional<Fence> next;
  for (std::size_t i = 0; i < prepared.jobs.size(); ++i) {
    const std::optional<Fence> fetched = i == 0 ? fetch(0) : std::exchange(next, std::nullopt);
    // The copy from this staging to the device was asked for before, and the device keeps to the
    // order.
    if (i + 1 < prepared.jobs.size()) next.emplace(fetch(i + 1));
    fetched->Wait();
    StepOnHost(prepared.jobs[i], stagings_[i % 2]);
    Return(prepared.jobs[i], stagings_[i % 2]);
  }
  // The next step writes to the stagings from the host, where no order holds.
  if (!prepared.jobs.empty()) Fence(prepared.jobs.back().parameter.device()).Wait();
}

template <class Base, class Options, class State>
void HostAdamOf<Base, Options, State>::Fetch(const Job& job, Staging& staging) {
  constexpr bool kNonBlocking = true;
  const bool narrow = job.master != nullptr;
  // Types stay as they are: the device would make a copy to convert.
  const auto fetch = [&](const at::Tensor& from, at::Tensor& wide_buffer,
                         at::Tensor& narrow_buffer) {
    (narrow ? FirstAs(narrow_buffer, from) : First(wide_buffer, from)).copy_(from, kNonBlocking);
  };
  fetch(job.device_gradient, staging.gradient, staging.narrow_gradient);
  if (job.reads_parameter) {
    fetch(job.device_parameter, staging.parameter, staging.narrow_parameter);
  }
}

template <class Base, class Options, class State>
void HostAdamOf<Base, Options, State>::StepOnHost(const Job& job, Staging& staging) {
  const at::Tensor& model = job.device_parameter;
  at::Tensor gradient = First(staging.gradient, model);
  at::Tensor parameter = First(staging.parameter, model);
  if (job.master != nullptr) {
    gradient.copy_(FirstAs(staging.narrow_gradient, model));
    parameter = Flat(job.master->values);
    if (job.reads_parameter) parameter.copy_(FirstAs(staging.narrow_parameter, model));
  }
  State& state = *job.state;
  const Options& options = *job.options;
  state.step(state.step() + 1);
  *step_count_.data_ptr<float>() = static_cast<float>(state.step());
  const at::Tensor parameters[] = {parameter}, gradients[] = {gradient}, counts[] = {step_count_};
  const at::Tensor averages[] = {Flat(state.exp_avg())}, squares[] = {Flat(state.exp_avg_sq())};
  std::vector<at::Tensor> largest;
  if (options.amsgrad()) largest.push_back(Flat(state.max_exp_avg_sq()));
  const auto [beta1, beta2] = options.betas();
  const auto call = [&, first = beta1, second = beta2](auto kernel) {
    kernel(at::TensorList(parameters), at::TensorList(gradients), at::TensorList(averages),
           at::TensorList(squares), at::TensorList(largest), at::TensorList(counts), options.lr(),
           first, second, options.weight_decay(), options.eps(), options.amsgrad(),
           /*maximize=*/false, std::nullopt, std::nullopt);
  };
  if constexpr (std::is_same_v<Base, optim::AdamW>) {
    call([](auto&&... arguments) { at::_fused_adamw_(arguments...); });
  } else {
    call([](auto&&... arguments) { at::_fused_adam_(arguments...); });
  }
}

template <class Base, class Options, class State>
void HostAdamOf<Base, Options, State>::Return(const Job& job, Staging& staging) {
  at::Tensor to = job.device_parameter;
  if (job.master == nullptr) {
    to.copy_(First(staging.parameter, to), /*non_blocking=*/true);
    return;
  }
  at::Tensor narrow = FirstAs(staging.narrow_parameter, to);
  narrow.copy_(Flat(job.master->values));
  to.copy_(narrow, /*non_blocking=*/true);
  job.master->version = static_cast<std::uint32_t>(job.parameter._version());
}

template <class Base, class Options, class State>
at::Tensor HostAdamOf<Base, Options, State>::MasterOf(const at::Tensor& parameter) const {
  const auto found = masters_.find(parameter.unsafeGetTensorImpl());
  return found != masters_.end() ? found->second->values : at::Tensor();
}

template <class Base, class Options, class State>
void HostAdamOf<Base, Options, State>::SetMasters(const Masters& masters) {
  masters_.clear();
  for (const auto& [parameter, values] : masters) {
    masters_[parameter.unsafeGetTensorImpl()] =
        std::make_unique<Master>(Master{values, static_cast<std::uint32_t>(parameter._version())});
  }
}

template <class Base, class Options, class State>
void HostAdamOf<Base, Options, State>::save(torch::serialize::OutputArchive&) const {
  TORCH_CHECK(false, "an optimizer on the host is saved by plimsoll::train::SaveOptimizer");
}

template <class Base, class Options, class State>
void HostAdamOf<Base, Options, State>::load(torch::serialize::InputArchive&) {
  TORCH_CHECK(false, "an optimizer on the host is loaded by plimsoll::train::LoadOptimizer");
}

template class HostAdamOf<optim::Adam, optim::AdamOptions, optim::AdamParamState>;
template class HostAdamOf<optim::AdamW, optim::AdamWOptions, optim::AdamWParamState>;

}  // namespace plimsoll::train

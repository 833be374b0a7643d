#include "train/optimizers/sliced_step.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <memory>
#include <typeindex>
#include <utility>
#include <vector>

#include "train/optimizers/memory_order.h"
#include "train/optimizers/optimizer_step.h"

namespace plimsoll::train {
namespace {

namespace optim = torch::optim;

using ParamState = optim::OptimizerParamState;
using StateMap = std::decay_t<decltype(std::declval<optim::Optimizer&>().state())>;
using StateTensors = std::vector<at::Tensor*>;

/// A hundredth of all parameters, so that copies of a slice do not count; not so small that
/// launches do, nor larger than is of use.
constexpr std::int64_t kPart = 100;
constexpr std::int64_t kLeastSlice = 1 << 12;
constexpr std::int64_t kLargestSlice = 1 << 22;
/// Temporaries of a step, by the slice: more than any of these optimizers has at once, besides the
/// state that it makes. And for single numbers.
constexpr std::int64_t kTemporaries = 3;
constexpr std::int64_t kNumbers = 256;
constexpr int kAttempts = 3;

// The tensors of a state that a step with these options has or makes.

template <class AdamState, class Options>
StateTensors UsedByAdam(AdamState& state, const Options& options) {
  StateTensors used = {&state.exp_avg(), &state.exp_avg_sq()};
  if (options.amsgrad()) used.push_back(&state.max_exp_avg_sq());
  return used;
}
StateTensors Used(optim::AdamParamState& state, const optim::AdamOptions& options) {
  return UsedByAdam(state, options);
}
StateTensors Used(optim::AdamWParamState& state, const optim::AdamWOptions& options) {
  return UsedByAdam(state, options);
}
StateTensors Used(optim::SGDParamState& state, const optim::SGDOptions& options) {
  return options.momentum() != 0 ? StateTensors{&state.momentum_buffer()} : StateTensors{};
}
StateTensors Used(optim::RMSpropParamState& state, const optim::RMSpropOptions& options) {
  StateTensors used = {&state.square_avg()};
  if (options.momentum() > 0) used.push_back(&state.momentum_buffer());
  if (options.centered()) used.push_back(&state.grad_avg());
  return used;
}
StateTensors Used(optim::AdagradParamState& state, const optim::AdagradOptions&) {
  return {&state.sum()};
}

struct Sliceable {
  std::type_index optimizer;
  std::unique_ptr<ParamState> (*new_state)();
  StateTensors (*used)(ParamState& state, const optim::OptimizerOptions& options);
};

template <class Optimizer, class State, class Options>
Sliceable SliceableOf() {
  return {.optimizer = typeid(Optimizer),
          .new_state = []() -> std::unique_ptr<ParamState> { return std::make_unique<State>(); },
          .used =
              [](ParamState& state, const optim::OptimizerOptions& options) {
                return Used(static_cast<State&>(state), static_cast<const Options&>(options));
              }};
}

const Sliceable* FindSliceable(const optim::Optimizer& optimizer) {
  static const std::vector<Sliceable> kinds = {
      SliceableOf<optim::SGD, optim::SGDParamState, optim::SGDOptions>(),
      SliceableOf<optim::Adam, optim::AdamParamState, optim::AdamOptions>(),
      SliceableOf<optim::AdamW, optim::AdamWParamState, optim::AdamWOptions>(),
      SliceableOf<optim::RMSprop, optim::RMSpropParamState, optim::RMSpropOptions>(),
      SliceableOf<optim::Adagrad, optim::AdagradParamState, optim::AdagradOptions>()};
  for (const Sliceable& kind : kinds) {
    if (kind.optimizer == std::type_index(typeid(optimizer))) return &kind;
  }
  return nullptr;
}

/// One parameter, with flat views of all that its step reads and writes.
struct Job {
  std::size_t group = 0;
  void* key = nullptr;
  at::Tensor parameter, gradient;
  /// As it is before the step, or, where there is none yet, as torch will make it: its tensors have
  /// room and no values.
  std::unique_ptr<ParamState> state;
  bool first = false;
  std::vector<at::Tensor> tensors;
};

/// RAII guard: the optimizer has one parameter, with its state, in one group.
class OnlyOne {
 public:
  OnlyOne(optim::Optimizer& optimizer, std::size_t group, const at::Tensor& parameter,
          std::unique_ptr<ParamState> state)
      : optimizer_(optimizer), parameter_(parameter) {
    for (auto& each : optimizer.param_groups()) parameters_.push_back(std::move(each.params()));
    for (auto& each : optimizer.param_groups()) each.params().clear();
    optimizer.param_groups()[group].params().push_back(parameter);
    std::swap(optimizer.state(), state_);
    if (state != nullptr) optimizer.state()[Key()] = std::move(state);
  }
  ~OnlyOne() {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      optimizer_.param_groups()[i].params() = std::move(parameters_[i]);
    }
    std::swap(optimizer_.state(), state_);
  }
  OnlyOne(const OnlyOne&) = delete;
  OnlyOne& operator=(const OnlyOne&) = delete;

  /// Nothing where the step made none.
  std::unique_ptr<ParamState> TakeState() {
    const auto found = optimizer_.state().find(Key());
    return found != optimizer_.state().end() ? std::move(found->second) : nullptr;
  }

 private:
  void* Key() const { return parameter_.unsafeGetTensorImpl(); }

  optim::Optimizer& optimizer_;
  at::Tensor parameter_;
  std::vector<std::vector<at::Tensor>> parameters_;
  StateMap state_;
};

class TorchStep final : public SlicedStep {
 public:
  TorchStep(optim::Optimizer& optimizer, const Sliceable& kind)
      : optimizer_(optimizer), kind_(kind) {
    std::int64_t elements = 0;
    std::int64_t largest = 0;
    for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
      for (const at::Tensor& parameter : optimizer.param_groups()[i].params()) {
        elements += parameter.numel();
        largest = std::max(largest, parameter.numel());
        if (parameter.grad().defined() && parameter.numel() > 0) Add(i, parameter);
      }
    }
    slice_ = std::min(largest, std::clamp(elements / kPart, kLeastSlice, kLargestSlice));
    for (const Job& job : jobs_) MakeRoom(job);
  }

  void Run() override;

 private:
  void Add(std::size_t group, const at::Tensor& parameter);
  void MakeRoom(const Job& job);
  void StepSlice(Job& job, std::int64_t begin, std::int64_t end);
  void TrySlice(const Job& job, const at::Tensor& parameter, const std::vector<at::Tensor>& tensors,
                std::unique_ptr<ParamState>& result);
  std::vector<at::Tensor> BackupsFor(const at::Tensor& like, std::size_t count);

  optim::Optimizer& optimizer_;
  const Sliceable& kind_;
  std::int64_t slice_ = 0;
  std::vector<Job> jobs_;
  /// For what a slice was before; several for each device and type.
  std::vector<at::Tensor> backups_;
};

void TorchStep::Add(std::size_t group, const at::Tensor& parameter) {
  const optim::OptimizerOptions& options = optimizer_.param_groups()[group].options();
  void* const key = parameter.unsafeGetTensorImpl();
  const auto found = optimizer_.state().find(key);
  Job job{.group = group,
          .key = key,
          .parameter = Flat(parameter),
          .gradient = Flat(GradientInOrder(parameter)),
          .state = found != optimizer_.state().end() ? found->second->clone() : nullptr};
  job.first = job.state == nullptr;
  if (job.first) job.state = kind_.new_state();
  for (at::Tensor* tensor : kind_.used(*job.state, options)) {
    *tensor = tensor->defined()
                  ? InOrderOf(*tensor, parameter)
                  : at::empty_like(parameter, parameter.options().requires_grad(false));
    job.tensors.push_back(Flat(*tensor));
  }
  jobs_.push_back(std::move(job));
}

void TorchStep::MakeRoom(const Job& job) {
  const std::size_t wanted = 1 + job.tensors.size();
  const std::size_t there = BackupsFor(job.parameter.slice(0, 0, 1), wanted).size();
  if (there == wanted) return;
  const auto options = job.parameter.options().requires_grad(false);
  for (std::size_t i = there; i < wanted; ++i) backups_.push_back(at::empty({slice_}, options));
  // Given back at once; torch's allocator keeps it at hand.
  const std::int64_t made = job.first ? static_cast<std::int64_t>(job.tensors.size()) : 0;
  at::empty({(kTemporaries + made) * slice_ + kNumbers}, options);
}

std::vector<at::Tensor> TorchStep::BackupsFor(const at::Tensor& like, std::size_t count) {
  std::vector<at::Tensor> found;
  for (const at::Tensor& backup : backups_) {
    const bool same = backup.device() == like.device() && backup.dtype() == like.dtype();
    if (same && found.size() < count) found.push_back(backup.slice(0, 0, like.numel()));
  }
  return found;
}

void TorchStep::TrySlice(const Job& job, const at::Tensor& parameter,
                         const std::vector<at::Tensor>& tensors,
                         std::unique_ptr<ParamState>& result) {
  const optim::OptimizerOptions& options = optimizer_.param_groups()[job.group].options();
  std::unique_ptr<ParamState> state;
  if (!job.first) {
    state = job.state->clone();
    const StateTensors used = kind_.used(*state, options);
    for (std::size_t i = 0; i < used.size(); ++i) *used[i] = tensors[i];
  }
  OnlyOne only(optimizer_, job.group, parameter, std::move(state));
  optimizer_.step();
  result = only.TakeState();
  if (result == nullptr) return;
  const StateTensors used = kind_.used(*result, options);
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (used[i]->data_ptr() != tensors[i].data_ptr()) tensors[i].copy_(*used[i]);
  }
}

void TorchStep::StepSlice(Job& job, std::int64_t begin, std::int64_t end) {
  at::Tensor parameter = job.parameter.slice(0, begin, end).detach();
  parameter.mutable_grad() = job.gradient.slice(0, begin, end);
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& tensor : job.tensors) tensors.push_back(tensor.slice(0, begin, end));
  const std::vector<at::Tensor> backups = BackupsFor(parameter, 1 + tensors.size());
  backups[0].copy_(parameter);
  for (std::size_t i = 0; i < tensors.size(); ++i) backups[1 + i].copy_(tensors[i]);
  std::unique_ptr<ParamState> result;
  for (int attempt = 1;; ++attempt) {
    try {
      TrySlice(job, parameter, tensors, result);
      break;
    } catch (const c10::OutOfMemoryError&) {
      parameter.copy_(backups[0]);
      for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].copy_(backups[1 + i]);
      TORCH_CHECK(attempt < kAttempts,
                  "the memory that the optimizer's step needs was there, and is gone now that a "
                  "part of the parameters is stepped: load the last saved state");
    }
  }
  if (end < job.parameter.numel() || result == nullptr) return;
  // Of the last slice: with the whole tensors it is the state of the parameter.
  const optim::OptimizerOptions& options = optimizer_.param_groups()[job.group].options();
  const StateTensors whole = kind_.used(*job.state, options);
  const StateTensors used = kind_.used(*result, options);
  for (std::size_t i = 0; i < used.size(); ++i) *used[i] = *whole[i];
  optimizer_.state()[job.key] = std::move(result);
}

void TorchStep::Run() {
  const torch::NoGradGuard no_grad;
  for (Job& job : jobs_) {
    for (std::int64_t begin = 0; begin < job.parameter.numel(); begin += slice_) {
      StepSlice(job, begin, std::min(begin + slice_, job.parameter.numel()));
    }
  }
}

}  // namespace

bool CanStepInSlices(const optim::Optimizer& optimizer) {
  return FindSliceable(optimizer) != nullptr;
}

std::unique_ptr<SlicedStep> PrepareInSlices(optim::Optimizer& optimizer) {
  const torch::NoGradGuard no_grad;
  const Sliceable* kind = FindSliceable(optimizer);
  TORCH_CHECK(kind != nullptr, "this optimizer cannot be stepped in slices");
  return std::make_unique<TorchStep>(optimizer, *kind);
}

Bytes StateToComeInSlices(optim::Optimizer& optimizer) {
  const Sliceable* kind = FindSliceable(optimizer);
  TORCH_CHECK(kind != nullptr, "this optimizer cannot be stepped in slices");
  return NewStateBytes(optimizer,
                       [&](const optim::OptimizerOptions& options, const at::Tensor& one) {
                         const auto state = kind->new_state();
                         return static_cast<Bytes>(kind->used(*state, options).size()) *
                                static_cast<Bytes>(one.nbytes());
                       });
}

}  // namespace plimsoll::train

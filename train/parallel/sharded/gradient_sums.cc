#include "train/parallel/sharded/gradient_sums.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace plimsoll::train {
namespace {

namespace autograd = torch::autograd;

}  // namespace

/// Lives in the parameter.
class GradientSums::Hook : public autograd::PostAccumulateGradHook {
 public:
  Hook(GradientSums& owner, std::size_t group, std::size_t parameter)
      : owner_(owner), group_(group), parameter_(parameter) {}

  void operator()(const at::Tensor& /*parameter*/) override { owner_.Take(group_, parameter_); }

 private:
  GradientSums& owner_;
  std::size_t group_;
  std::size_t parameter_;
};

GradientSums::GradientSums(const std::vector<std::unique_ptr<FlatGroup>>& groups)
    : groups_(groups), complete_(groups.size()) {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const auto& parameters = groups_[i]->parameters();
    for (std::size_t j = 0; j < parameters.size(); ++j) {
      autograd::impl::set_post_acc_grad_hooks(parameters[j], std::make_unique<Hook>(*this, i, j));
    }
  }
}

GradientSums::~GradientSums() {
  for (const auto& group : groups_) {
    for (const at::Tensor& parameter : group->parameters()) {
      autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
    }
  }
}

void GradientSums::Begin(Pass pass) {
  pass_ = pass;
  Forget();
}

void GradientSums::Take(std::size_t group, std::size_t parameter) {
  if (!groups_[group]->TakeGradient(parameter, pass_.counts)) return;
  // All that needs these parameters in this backward is done.
  groups_[group]->Release();
  complete_[group] = true;
  std::size_t ready = begun_;
  while (ready > 0 && complete_[ready - 1]) --ready;
  if (pass_.send) BeginSums(ready);
}

/// Two at a time, so that whole gradients do not pile up.
void GradientSums::BeginSums(std::size_t down_to) {
  constexpr std::size_t kAtOnce = 2;
  while (begun_ > down_to) {
    if (on_their_way_.size() == kAtOnce) {
      groups_[on_their_way_.front()]->FinishSum();
      on_their_way_.pop_front();
    }
    --begun_;
    groups_[begun_]->BeginSum();
    on_their_way_.push_back(begun_);
  }
}

void GradientSums::Finish() {
  if (pass_.send) BeginSums(0);
  for (const std::size_t group : on_their_way_) groups_[group]->FinishSum();
  on_their_way_.clear();
}

void GradientSums::Forget() {
  for (const auto& group : groups_) group->NewPass();
  std::fill(complete_.begin(), complete_.end(), false);
  begun_ = groups_.size();
  on_their_way_.clear();
}

}  // namespace plimsoll::train

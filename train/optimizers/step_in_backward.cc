#include "train/optimizers/step_in_backward.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <string>

#include "train/optimizers/optimizer_state.h"
#include "train/optimizers/optimizer_step.h"

namespace plimsoll::train {

namespace autograd = torch::autograd;

namespace {

std::string PrefixInBackward(std::size_t optimizer) {
  return "optimizer " + std::to_string(optimizer) + " ";
}

}  // namespace

/// Lives in the parameter; the optimizer holds the parameter in turn, so it is not owned from here.
class StepInBackward::Hook : public autograd::PostAccumulateGradHook {
 public:
  Hook(const StepInBackward& owner, torch::optim::Optimizer& optimizer)
      : owner_(owner), optimizer_(optimizer) {}

  void operator()(const at::Tensor& parameter) override {
    if (!owner_.enabled_) return;
    const torch::NoGradGuard no_grad;
    StepOrNothing(optimizer_);
    parameter.mutable_grad() = at::Tensor();
  }

 private:
  const StepInBackward& owner_;
  torch::optim::Optimizer& optimizer_;
};

StepInBackward::StepInBackward(const std::vector<at::Tensor>& parameters, const Factory& factory)
    : parameters_(parameters) {
  // All optimizers and all checks first: an error must leave no hook behind.
  for (const at::Tensor& parameter : parameters_) {
    TORCH_CHECK(parameter.is_leaf() && parameter.requires_grad(),
                "only parameters that get a gradient can be stepped in backward");
    TORCH_CHECK(autograd::impl::post_acc_grad_hooks(parameter) == nullptr,
                "a parameter is already stepped in backward");
    optimizers_.push_back(factory({parameter}));
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    autograd::impl::set_post_acc_grad_hooks(parameters_[i],
                                            std::make_unique<Hook>(*this, *optimizers_[i]));
  }
}

StepInBackward::~StepInBackward() {
  for (const at::Tensor& parameter : parameters_) {
    autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
  }
}

void StepInBackward::Save(const std::filesystem::path& path) const {
  StateSaver saver;
  for (std::size_t i = 0; i < optimizers_.size(); ++i) {
    AddOptimizer(saver, PrefixInBackward(i), *optimizers_[i]);
  }
  saver.Write(path);
}

void StepInBackward::Load(const std::filesystem::path& path) {
  StateLoader loader = StateLoader::Open(path);
  std::vector<std::function<void()>> puts;
  for (std::size_t i = 0; i < optimizers_.size(); ++i) {
    puts.push_back(TakeOptimizer(loader, PrefixInBackward(i), *optimizers_[i]));
  }
  loader.CheckThatNothingIsLeft();
  for (const auto& put : puts) put();
}

}  // namespace plimsoll::train

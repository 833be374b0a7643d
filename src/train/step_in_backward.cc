#include "train/step_in_backward.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/serialize/archive.h>

#include <string>

#include "train/optimizer_step.h"

namespace plimsoll::train {

namespace autograd = torch::autograd;

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

void StepInBackward::Save(torch::serialize::OutputArchive& archive) const {
  for (std::size_t i = 0; i < optimizers_.size(); ++i) {
    torch::serialize::OutputArchive one(archive.compilation_unit());
    optimizers_[i]->save(one);
    archive.write(std::to_string(i), one);
  }
}

void StepInBackward::Load(torch::serialize::InputArchive& archive) {
  for (std::size_t i = 0; i < optimizers_.size(); ++i) {
    torch::serialize::InputArchive one;
    archive.read(std::to_string(i), one);
    optimizers_[i]->load(one);
  }
}

}  // namespace plimsoll::train

#include "train/trainer/trained_optimizers.h"

#include <algorithm>
#include <set>
#include <utility>

#include "train/optimizers/adam8bit.h"
#include "train/optimizers/host_optimizer.h"
#include "train/optimizers/optimizer_state.h"
#include "train/optimizers/optimizer_step.h"

namespace plimsoll::train {

TrainedOptimizers::TrainedOptimizers(List list, OptimizerForms forms,
                                     const torch::nn::Module& model, Team& team)
    : model_(model), team_(team), list_(std::move(list)), forms_(std::move(forms)) {
  if (!forms_.allowed.empty()) form_ = forms_.allowed.front();
  Adopt(list_);
  for (const auto& optimizer : list_) {
    stepped_.push_back(optimizer.get());
    std::vector<double>& rates = base_rates_.emplace_back();
    for (const auto& group : optimizer->param_groups()) rates.push_back(group.options().get_lr());
  }
}

std::shared_ptr<torch::optim::Optimizer> TrainedOptimizers::Make(OptimizerForm form) const {
  auto optimizer = forms_.make(form);
  TORCH_CHECK(optimizer != nullptr, "a trainer needs an optimizer");
  Adopt({optimizer});
  return optimizer;
}

void TrainedOptimizers::Use(OptimizerForm form) {
  if (form_ == form) return;
  const auto optimizer = Make(form);
  if (begun()) {
    StateSaver saver;
    AddOptimizer(saver, "", *list_[0]);
    StateLoader loader = StateLoader::FromBytes(saver.Bytes());
    TakeOptimizer(loader, "", *optimizer)();
  }
  Take({optimizer}, form);
}

void TrainedOptimizers::Take(List list, OptimizerForm form) {
  list_ = std::move(list);
  stepped_.clear();
  for (const auto& optimizer : list_) stepped_.push_back(optimizer.get());
  form_ = form;
  ++changes_;
}

std::vector<OptimizerForm> TrainedOptimizers::FormsToTry() const {
  std::vector<OptimizerForm> forms = forms_.allowed;
  // A state in 8 bits is neither made of one in fp32 nor made one.
  std::erase_if(forms, [&](OptimizerForm form) {
    const bool eight_bits = form == OptimizerForm::kEightBits || form_ == OptimizerForm::kEightBits;
    return begun() && form != form_ && eight_bits;
  });
  return forms;
}

std::vector<std::optional<OptimizerForm>> TrainedOptimizers::FormsToLoad(
    std::optional<OptimizerForm> saved, bool still_good) const {
  if (!form_) return {std::nullopt};
  const OptimizerForm before = saved.value_or(*form_);
  std::vector<std::optional<OptimizerForm>> forms;
  const auto add = [&](OptimizerForm form) {
    // A state in 8 bits is neither made of one in fp32 nor made one.
    constexpr auto kEight = OptimizerForm::kEightBits;
    const bool allowed = std::ranges::count(forms_.allowed, form) > 0;
    const bool same_kind = (form == kEight) == (before == kEight);
    const bool known = std::ranges::count(forms, std::optional(form)) > 0;
    if (allowed && same_kind && !known) forms.emplace_back(form);
  };
  if (still_good) add(before);
  for (auto form = forms_.allowed.rbegin(); form != forms_.allowed.rend(); ++form) add(*form);
  if (forms.empty()) forms.push_back(form_);
  return forms;
}

void TrainedOptimizers::SetRates(double factor) const {
  for (std::size_t i = 0; i < list_.size(); ++i) {
    auto& groups = list_[i]->param_groups();
    for (std::size_t j = 0; j < groups.size(); ++j) {
      groups[j].options().set_lr(factor * base_rates_[i].at(j));
    }
  }
}

Bytes TrainedOptimizers::StateStillToCome() const {
  Bytes bytes = 0;
  for (torch::optim::Optimizer* const optimizer : stepped_) bytes += StateToCome(*optimizer);
  return bytes;
}

bool TrainedOptimizers::HaveSmallState() const {
  return std::ranges::any_of(stepped_, [](torch::optim::Optimizer* one) {
    return dynamic_cast<AdamW8bit*>(one) != nullptr || dynamic_cast<Adam8bit*>(one) != nullptr ||
           dynamic_cast<HostAdamW*>(one) != nullptr || dynamic_cast<HostAdam*>(one) != nullptr;
  });
}

void TrainedOptimizers::Adopt(const List& list) const {
  std::set<void*> seen;
  for (const auto& optimizer : list) {
    std::set<void*> own;
    for (auto& group : optimizer->param_groups()) {
      std::erase_if(group.params(), [&](const at::Tensor& parameter) {
        void* const key = parameter.unsafeGetTensorImpl();
        TORCH_CHECK(!seen.contains(key), "two optimizers have the same parameter");
        return !own.insert(key).second;
      });
    }
    const auto parameters = model_.parameters();
    TORCH_CHECK(std::ranges::any_of(
                    parameters,
                    [&](const at::Tensor& one) { return own.contains(one.unsafeGetTensorImpl()); }),
                "an optimizer has no parameter of the model");
    seen.merge(own);
    team_.Adopt(*optimizer);
  }
}

}  // namespace plimsoll::train

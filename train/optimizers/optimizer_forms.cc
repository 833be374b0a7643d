#include "train/optimizers/optimizer_forms.h"

#include <c10/util/Exception.h>

#include <utility>

#include "train/optimizers/adam8bit.h"
#include "train/optimizers/fused_adam.h"
#include "train/optimizers/host_optimizer.h"

namespace plimsoll::train {

std::string_view FormName(OptimizerForm form) {
  switch (form) {
    case OptimizerForm::kFused:
      return "fused";
    case OptimizerForm::kEightBits:
      return "8bit";
    case OptimizerForm::kHost:
      return "host";
  }
  return {};
}

OptimizerForm ParseForm(std::string_view name) {
  for (const auto form : {OptimizerForm::kFused, OptimizerForm::kEightBits, OptimizerForm::kHost}) {
    if (FormName(form) == name) return form;
  }
  TORCH_CHECK(false, "'", name, "' is no form of an optimizer; there are fused, 8bit and host");
}

OptimizerForms AdamWForms(std::vector<torch::optim::OptimizerParamGroup> groups,
                          torch::optim::AdamWOptions defaults) {
  const auto make = [groups = std::move(groups),
                     defaults](OptimizerForm form) -> std::shared_ptr<torch::optim::Optimizer> {
    switch (form) {
      case OptimizerForm::kFused:
        return std::make_shared<FusedAdamW>(groups, defaults);
      case OptimizerForm::kEightBits:
        return std::make_shared<AdamW8bit>(groups, defaults);
      case OptimizerForm::kHost:
        return std::make_shared<HostAdamW>(groups, defaults);
    }
    return nullptr;
  };
  return {.make = make};
}

OptimizerForms AdamWForms(std::vector<at::Tensor> parameters, torch::optim::AdamWOptions defaults) {
  return AdamWForms({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults);
}

}  // namespace plimsoll::train

// The same optimizer in several forms: Trainer takes the first with which training fits.
#pragma once

#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

namespace plimsoll::train {

enum class OptimizerForm {
  /// State in fp32 on the device.
  kFused,
  /// State in 8 bits on the device: a quarter of the memory, and other numbers.
  kEightBits,
  /// State in fp32 on the host, stepped there: none of the memory, and slower.
  kHost,
};
/// "fused", "8bit", "host".
std::string_view FormName(OptimizerForm form);
OptimizerForm ParseForm(std::string_view name);

struct OptimizerForms {
  /// Makes it in a form, without a state.
  std::function<std::shared_ptr<torch::optim::Optimizer>(OptimizerForm form)> make;
  /// Which may be taken, in this order.
  std::vector<OptimizerForm> allowed = {OptimizerForm::kFused, OptimizerForm::kHost};
};

/// AdamW: FusedAdamW, AdamW8bit, HostAdamW.
OptimizerForms AdamWForms(std::vector<torch::optim::OptimizerParamGroup> groups,
                          torch::optim::AdamWOptions defaults = {});
OptimizerForms AdamWForms(std::vector<at::Tensor> parameters,
                          torch::optim::AdamWOptions defaults = {});

}  // namespace plimsoll::train

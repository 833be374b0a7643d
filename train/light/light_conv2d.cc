#include <torch/nn/functional/padding.h>
#include <torch/types.h>

#include <algorithm>

#include "train/light/light_layer.h"

namespace plimsoll::train {
namespace {

namespace nn = torch::nn;

at::Tensor Pad(const at::Tensor& x, const std::vector<std::int64_t>& pad,
               const nn::Conv2dOptions::padding_mode_t& mode) {
  namespace F = nn::functional;
  const auto padded = [&](F::PadFuncOptions::mode_t how) {
    return F::pad(x, F::PadFuncOptions(pad).mode(how));
  };
  if (std::holds_alternative<torch::enumtype::kReflect>(mode)) return padded(torch::kReflect);
  if (std::holds_alternative<torch::enumtype::kReplicate>(mode)) return padded(torch::kReplicate);
  if (std::holds_alternative<torch::enumtype::kCircular>(mode)) return padded(torch::kCircular);
  return padded(torch::kConstant);
}

}  // namespace

LightConv2dImpl::LightConv2dImpl(const nn::Conv2dOptions& given)
    : LightConv2dImpl(*nn::Conv2d(given)) {}

LightConv2dImpl::LightConv2dImpl(const nn::Conv2dImpl& convolution)
    : LightLayer("LightConv2d"), options(OptionsOf(convolution)) {
  TakeWeight(convolution.weight, convolution.bias);
  train(convolution.is_training());
  FindGeometry();
}

void LightConv2dImpl::FindGeometry() {
  ConvolutionGeometry geometry{{options.stride()->begin(), options.stride()->end()},
                               {0, 0},
                               {options.dilation()->begin(), options.dilation()->end()},
                               options.groups()};
  // Before and after, for each dimension.
  std::vector<std::pair<std::int64_t, std::int64_t>> around(2, {0, 0});
  if (const auto* given = std::get_if<torch::ExpandingArray<2>>(&options.padding())) {
    for (std::size_t i = 0; i < 2; ++i) around[i] = {(**given)[i], (**given)[i]};
  } else if (std::holds_alternative<torch::enumtype::kSame>(options.padding())) {
    for (std::size_t i = 0; i < 2; ++i) {
      const std::int64_t all = (*options.dilation())[i] * ((*options.kernel_size())[i] - 1);
      around[i] = {all / 2, all - all / 2};
    }
  }
  const bool zeros = std::holds_alternative<torch::enumtype::kZeros>(options.padding_mode());
  const bool even = around[0].first == around[0].second && around[1].first == around[1].second;
  pad_before_.clear();
  if (zeros && even) {
    geometry.padding = {around[0].first, around[1].first};
  } else {
    // The last dimension comes first.
    pad_before_ = {around[1].first, around[1].second, around[0].first, around[0].second};
  }
  geometry_ = geometry;
}

at::Tensor LightConv2dImpl::Padded(const at::Tensor& x) const {
  return pad_before_.empty() ? x : Pad(x, pad_before_, options.padding_mode());
}

at::Tensor LightConv2dImpl::forward(const at::Tensor& x) {
  if (x.dim() == 3) return forward(x.unsqueeze(0)).squeeze(0);
  if (separable()) return separable_->forward(x);
  return Run(geometry_, Padded(x));
}

void LightConv2dImpl::MakeSeparable() {
  TORCH_CHECK(!separable() && !quantized() && !has_adapter(),
              "only a convolution that is as it was made can become separable");
  separable_ = SeparableConv2d(options);
  separable_->to(weight.device(), weight.scalar_type());
  separable_->train(is_training());
  register_module("depthwise", separable_->depthwise());
  register_module("pointwise", separable_->pointwise());
  DropWeight();
  if (bias.defined()) parameters_.erase("bias");
  bias = at::Tensor();
}

std::optional<std::string> LightConv2dImpl::CannotAdapt() const {
  if (separable()) return "is separable";
  if (options.groups() != 1) return "has groups";
  return LightLayer::CannotAdapt();
}

std::optional<std::string> LightConv2dImpl::CannotQuantize() const {
  if (separable()) return "is separable";
  return LightLayer::CannotQuantize();
}

std::shared_ptr<nn::Module> LightConv2dImpl::clone(const std::optional<at::Device>& device) const {
  auto copy = std::make_shared<LightConv2dImpl>(options);
  if (separable()) {
    copy->MakeSeparable();
    const torch::NoGradGuard no_grad;
    const auto to = copy->named_parameters();
    for (const auto& parameter : named_parameters()) {
      to[parameter.key()].set_data(parameter->to(device.value_or(parameter->device()),
                                                 parameter->scalar_type(), false, /*copy=*/true));
    }
    copy->train(is_training());
  } else {
    copy->CopyFrom(*this, device);
  }
  return copy;
}

void LightConv2dImpl::clone_(Module& other, const std::optional<at::Device>& device) {
  *this = dynamic_cast<const LightConv2dImpl&>(*other.clone(device));
}

}  // namespace plimsoll::train

#include "train/models/separable.h"

#include <torch/nn/modules/container/sequential.h>

namespace plimsoll::train {
namespace {

namespace nn = torch::nn;

bool IsReplaceable(const nn::Conv2dImpl& convolution) {
  const auto& kernel = *convolution.options.kernel_size();
  return kernel[0] >= 3 && kernel[1] >= 3 && convolution.options.groups() == 1;
}

/// nn::Conv2d takes a simpler form of the options than it keeps.
nn::Conv2dOptions OptionsOf(const nn::Conv2dImpl& convolution) {
  const auto& from = convolution.options;
  return nn::Conv2dOptions(from.in_channels(), from.out_channels(), from.kernel_size())
      .stride(from.stride())
      .padding(from.padding())
      .dilation(from.dilation())
      .bias(from.bias())
      .padding_mode(from.padding_mode());
}

SeparableConv2d Separable(const nn::Conv2dImpl& convolution) {
  SeparableConv2d separable(OptionsOf(convolution));
  separable->to(convolution.weight.device(), convolution.weight.scalar_type());
  separable->train(convolution.is_training());
  return separable;
}

/// The element is held twice: once to be called, once to be listed.
int ReplaceElements(nn::SequentialImpl& sequential) {
  int replaced = 0;
  const auto names = sequential.named_children().keys();
  auto name = names.begin();
  for (nn::AnyModule& element : sequential) {
    const auto convolution = std::dynamic_pointer_cast<nn::Conv2dImpl>(element.ptr());
    if (convolution && IsReplaceable(*convolution)) {
      const SeparableConv2d separable = Separable(*convolution);
      element = nn::AnyModule(separable);
      sequential.replace_module(*name, separable);
      ++replaced;
    }
    ++name;
  }
  return replaced;
}

}  // namespace

SeparableConv2dImpl::SeparableConv2dImpl(nn::Conv2dOptions options) : options_(std::move(options)) {
  TORCH_CHECK(options_.groups() == 1, "a separable convolution has no groups of its own");
  SeparableConv2dImpl::reset();
}

void SeparableConv2dImpl::reset() {
  const std::int64_t channels = options_.in_channels();
  depthwise_ = register_module(
      "depthwise",
      nn::Conv2d(nn::Conv2dOptions(options_).out_channels(channels).groups(channels).bias(false)));
  pointwise_ = register_module(
      "pointwise",
      nn::Conv2d(nn::Conv2dOptions(channels, options_.out_channels(), 1).bias(options_.bias())));
}

at::Tensor SeparableConv2dImpl::forward(const at::Tensor& x) { return pointwise_(depthwise_(x)); }

int ReplaceConvolutions(nn::Module& model, std::vector<std::string>* out_of_reach) {
  int replaced = 0;
  model.apply([&](nn::Module& module) {
    if (auto* sequential = dynamic_cast<nn::SequentialImpl*>(&module)) {
      replaced += ReplaceElements(*sequential);
    }
  });
  if (out_of_reach == nullptr) return replaced;
  model.apply([&](const std::string& name, nn::Module& module) {
    const auto* convolution = dynamic_cast<const nn::Conv2dImpl*>(&module);
    if (convolution && IsReplaceable(*convolution)) out_of_reach->push_back(name);
  });
  return replaced;
}

}  // namespace plimsoll::train

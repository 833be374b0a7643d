#include "train/light/separable.h"

#include "train/light/layers.h"

namespace plimsoll::train {
namespace {

namespace nn = torch::nn;

/// Of the convolution, if the layer is one.
std::optional<nn::Conv2dOptions> OptionsOfConvolution(const nn::Module& layer) {
  if (const auto* light = dynamic_cast<const LightConv2dImpl*>(&layer)) return light->options;
  if (const auto* plain = dynamic_cast<const nn::Conv2dImpl*>(&layer)) return OptionsOf(*plain);
  return std::nullopt;
}

/// A sentence without its subject; nothing if it can.
std::optional<std::string> CannotBecomeSeparable(const Layer& layer) {
  const auto options = OptionsOfConvolution(*layer.module);
  if (!options) return "is no convolution";
  if (const auto* light = dynamic_cast<const LightConv2dImpl*>(layer.module.get())) {
    if (light->separable()) return "is separable";
    if (light->quantized()) return "is in 8 bits";
    if (light->has_adapter()) return "has an adapter";
  }
  if (options->groups() != 1) return "has groups";
  const std::int64_t height = (*options->kernel_size())[0];
  const std::int64_t width = (*options->kernel_size())[1];
  if (height < 3 || width < 3) return "has a kernel smaller than 3x3";
  const std::int64_t out = options->out_channels();
  if (height * width + out >= out * height * width) return "would not become smaller";
  return WeightIsHeld(*layer.module);
}

std::string BecomeSeparable(Layer& layer) {
  if (auto* light = dynamic_cast<LightConv2dImpl*>(layer.module.get())) {
    light->MakeSeparable();
  } else {
    const auto& plain = dynamic_cast<const nn::Conv2dImpl&>(*layer.module);
    SeparableConv2d separable(OptionsOf(plain));
    separable->to(plain.weight.device(), plain.weight.scalar_type());
    separable->train(plain.is_training());
    Exchange(layer, nn::AnyModule(separable));
  }
  return "separable convolution";
}

}  // namespace

SeparableConv2dImpl::SeparableConv2dImpl(nn::Conv2dOptions options) : options_(std::move(options)) {
  TORCH_CHECK(options_.groups() == 1, "a separable convolution cannot have ", options_.groups(),
              " groups of its own");
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

nn::Conv2dOptions OptionsOf(const nn::Conv2dImpl& convolution) {
  const auto& from = convolution.options;
  return nn::Conv2dOptions(from.in_channels(), from.out_channels(), from.kernel_size())
      .stride(from.stride())
      .padding(from.padding())
      .dilation(from.dilation())
      .groups(from.groups())
      .bias(from.bias())
      .padding_mode(from.padding_mode());
}

LightReport ReplaceConvolutions(nn::Module& model, const std::vector<std::string>& patterns) {
  LightReport report = ChangeLayers(model, patterns, CannotBecomeSeparable, BecomeSeparable);
  // Nobody takes a linear layer for a convolution that was left out.
  std::erase_if(report.skipped,
                [](const auto& skip) { return skip.reason == "is no convolution"; });
  return report;
}

}  // namespace plimsoll::train

#include "train/light/int8_weight.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <utility>

#include "train/checkpointing/autocast.h"

namespace plimsoll::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor InputGradient(const Geometry& geometry, const at::Tensor& gradient,
                         const at::Tensor& weight, at::IntArrayRef input_sizes) {
  if (!geometry) return at::matmul(gradient, weight);
  // Only the sizes of the input are looked at.
  const at::Tensor input = at::empty({1}, gradient.options()).expand(input_sizes);
  return std::get<0>(at::convolution_backward(
      gradient, input, weight, c10::nullopt, geometry->stride, geometry->padding,
      geometry->dilation, /*transposed=*/false, {0, 0}, geometry->groups, {true, false, false}));
}

at::Tensor BiasGradient(const Geometry& geometry, const at::Tensor& gradient) {
  if (geometry) return gradient.sum({0, 2, 3});
  return gradient.reshape({-1, gradient.size(-1)}).sum(0);
}

struct Int8Function : torch::autograd::Function<Int8Function> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const std::optional<at::Tensor>& bias, const Int8Weight& weight,
                            const Geometry& geometry) {
    context->saved_data["values"] = weight.values;
    context->saved_data["scales"] = weight.scales;
    context->saved_data["sizes"] = x.sizes().vec();
    context->saved_data["bias"] = bias.has_value() && bias->defined() && bias->requires_grad();
    context->saved_data["convolution"] = geometry.has_value();
    if (geometry) {
      context->saved_data["stride"] = geometry->stride;
      context->saved_data["padding"] = geometry->padding;
      context->saved_data["dilation"] = geometry->dilation;
      context->saved_data["groups"] = geometry->groups;
    }
    return ApplyWeight(geometry, x, weight.Dequantized(x.scalar_type()), bias);
  }

  static Geometry GeometryOf(AutogradContext& context) {
    if (!context.saved_data["convolution"].toBool()) return std::nullopt;
    return ConvolutionGeometry{
        context.saved_data["stride"].toIntVector(), context.saved_data["padding"].toIntVector(),
        context.saved_data["dilation"].toIntVector(), context.saved_data["groups"].toInt()};
  }

  static variable_list backward(AutogradContext* context, const variable_list& outer) {
    const Geometry geometry = GeometryOf(*context);
    const at::Tensor& gradient = outer[0];
    at::Tensor to_input;
    at::Tensor to_bias;
    if (context->needs_input_grad(0)) {
      const Int8Weight weight{context->saved_data["values"].toTensor(),
                              context->saved_data["scales"].toTensor()};
      to_input = InputGradient(geometry, gradient, weight.Dequantized(gradient.scalar_type()),
                               context->saved_data["sizes"].toIntVector());
    }
    if (context->saved_data["bias"].toBool()) to_bias = BiasGradient(geometry, gradient);
    return {to_input, to_bias, {}, {}};
  }
};

}  // namespace

at::Tensor ApplyWeight(const Geometry& geometry, const at::Tensor& x, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias) {
  if (!geometry) return at::linear(x, weight, bias);
  return at::conv2d(x, weight, bias, geometry->stride, geometry->padding, geometry->dilation,
                    geometry->groups);
}

std::optional<std::string> Int8Weight::Cannot(const at::Tensor& weight) {
  if (!weight.defined() || weight.dim() == 0 || weight.numel() == 0) return "has no weights";
  if (!weight.is_floating_point()) return "has weights that are no floating point numbers";
  if (!weight.detach().isfinite().all().item<bool>()) return "has weights that are not finite";
  return std::nullopt;
}

Int8Weight Int8Weight::Of(const at::Tensor& weight) {
  const std::optional<std::string> reason = Cannot(weight);
  TORCH_CHECK(!reason, "a layer that ", reason.value_or(""), " cannot be put into 8 bits");
  const at::Tensor rows = weight.detach().flatten(1).to(at::kFloat);
  const at::Tensor largest = rows.abs().amax(1, /*keepdim=*/true);
  // A scale that is no normal number would not be exact to half of itself.
  const at::Tensor scales = at::where(largest > 1e-30, largest / 127, 1);
  const at::Tensor values = (rows / scales).round_().clamp_(-127, 127).to(at::kChar);
  return {values.view(weight.sizes()), scales.squeeze(1)};
}

at::Tensor Int8Weight::Dequantized(at::ScalarType type) const {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(values.dim()), 1);
  shape[0] = -1;
  at::Tensor weight = at::empty(values.sizes(), values.options().dtype(type));
  // Multiplied in fp32, whatever it is rounded to.
  at::mul_out(weight, values, scales.view(shape));
  return weight;
}

at::Tensor ApplyInt8Weight(const Geometry& geometry, const at::Tensor& x, const Int8Weight& weight,
                           const std::optional<at::Tensor>& bias) {
  const AutocastState autocast = AutocastState::Of(x.device().type());
  const bool casts = autocast.enabled && x.scalar_type() != at::kDouble;
  const at::ScalarType type = casts ? autocast.dtype : x.scalar_type();
  const bool has_bias = bias.has_value() && bias->defined();
  return Int8Function::apply(
      x.to(type), has_bias ? std::make_optional(bias->to(type)) : std::nullopt, weight, geometry);
}

}  // namespace plimsoll::train

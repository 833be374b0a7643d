#include "train/light/light_layer.h"

#include <torch/nn/init.h>
#include <torch/types.h>

#include <cmath>
#include <utility>

namespace plimsoll::train {
void CheckAdapter(const AdapterOptions& options) {
  TORCH_CHECK(options.rank >= 1, "an adapter of rank ", options.rank,
              " cannot be: it needs 1 at least");
  TORCH_CHECK(std::isfinite(options.alpha), "an adapter's alpha must be a finite number");
  TORCH_CHECK(options.dropout >= 0 && options.dropout < 1, "an adapter's dropout of ",
              options.dropout, " is not in [0, 1)");
}

at::Tensor LightLayer::Register(const std::string& name, const at::Tensor& tensor, bool trained) {
  // A leaf of its own: what is trained must not have a history.
  return register_parameter(name, tensor.detach(), trained);
}

void LightLayer::TakeWeight(const at::Tensor& given_weight, const at::Tensor& given_bias) {
  weight = register_parameter("weight", given_weight, given_weight.requires_grad());
  weight_type_ = weight.scalar_type();
  if (given_bias.defined()) {
    bias = register_parameter("bias", given_bias, given_bias.requires_grad());
  }
}

void LightLayer::DropWeight() {
  parameters_.erase("weight");
  weight = at::Tensor();
}

void LightLayer::Freeze() {
  for (at::Tensor* tensor : {&weight, &bias}) {
    if (!tensor->defined()) continue;
    tensor->set_requires_grad(false);
    tensor->mutable_grad() = at::Tensor();
  }
}

std::optional<std::string> LightLayer::CannotAdapt() const {
  if (has_adapter()) return "has an adapter";
  return std::nullopt;
}

std::optional<std::string> LightLayer::CannotQuantize() const {
  if (quantized()) return "is in 8 bits";
  if (merged_) return "has an adapter merged into its weight";
  return Int8Weight::Cannot(weight);
}

void LightLayer::AddAdapter(const AdapterOptions& options) {
  CheckAdapter(options);
  const auto reason = CannotAdapt();
  TORCH_CHECK(!reason, "an adapter cannot be added to a layer that ", *reason);
  const at::Tensor& like = quantized() ? int8_.values : weight;
  const auto type = like.options().dtype(quantized() ? at::kFloat : weight.scalar_type());
  std::vector<std::int64_t> down_sizes = like.sizes().vec();
  down_sizes[0] = options.rank;
  const at::Tensor down = at::empty(down_sizes, type);
  torch::nn::init::kaiming_uniform_(down, std::sqrt(5.0));
  const at::Tensor up = at::zeros({like.size(0), options.rank}, type);
  Freeze();
  adapter_ = options;
  down_ = Register("adapter_down", down, true);
  up_ = Register("adapter_up", up, true);
}

void LightLayer::RemoveAdapter() {
  TORCH_CHECK(has_adapter(), "a layer without an adapter cannot lose one");
  parameters_.erase("adapter_down");
  parameters_.erase("adapter_up");
  down_ = up_ = at::Tensor();
  merged_ = false;
}

at::Tensor LightLayer::Delta() const {
  const torch::NoGradGuard no_grad;
  const at::ScalarType sums = weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor product = at::mm(up_.to(sums), down_.flatten(1).to(sums));
  return product.mul_(adapter_.alpha / static_cast<double>(adapter_.rank)).view(weight.sizes());
}

void LightLayer::Merge() {
  TORCH_CHECK(has_adapter() && !merged_, "only an adapter that is not merged yet can be merged");
  TORCH_CHECK(!quantized(),
              "an adapter cannot be merged into a weight in 8 bits: dequantize it first");
  weight.detach().add_(Delta());
  for (at::Tensor* tensor : {&down_, &up_}) tensor->set_requires_grad(false);
  merged_ = true;
}

void LightLayer::Unmerge() {
  TORCH_CHECK(merged_, "only an adapter that is merged can be taken out");
  weight.detach().sub_(Delta());
  for (at::Tensor* tensor : {&down_, &up_}) tensor->set_requires_grad(true);
  merged_ = false;
}

void LightLayer::Quantize() {
  const auto reason = CannotQuantize();
  TORCH_CHECK(!reason, "a layer that ", *reason, " cannot be put into 8 bits");
  const Int8Weight int8 = Int8Weight::Of(weight);
  weight_type_ = weight.scalar_type();
  Freeze();
  DropWeight();
  int8_.values = Register("weight_int8", int8.values, false);
  int8_.scales = Register("weight_scale", int8.scales, false);
}

void LightLayer::Dequantize() {
  TORCH_CHECK(quantized(), "a layer that is not in 8 bits cannot be dequantized");
  weight = Register("weight", int8_.Dequantized(weight_type_), false);
  parameters_.erase("weight_int8");
  parameters_.erase("weight_scale");
  int8_ = {};
}

at::Tensor LightLayer::Run(const Geometry& geometry, const at::Tensor& x) const {
  at::Tensor y = quantized() ? ApplyInt8Weight(geometry, x, int8_, bias)
                             : ApplyWeight(geometry, x, weight, bias);
  if (!has_adapter() || merged_) return y;
  const at::Tensor kept =
      adapter_.dropout > 0 ? at::dropout(x, adapter_.dropout, is_training()) : x;
  const at::Tensor narrow = ApplyWeight(geometry, kept, down_.to(x.scalar_type()), std::nullopt);
  const at::Tensor up = geometry ? up_.unsqueeze(-1).unsqueeze(-1) : up_;
  const Geometry pointwise = geometry ? Geometry(ConvolutionGeometry()) : std::nullopt;
  const at::Tensor added =
      ApplyWeight(pointwise, narrow, up.to(narrow.scalar_type()), std::nullopt);
  return at::add(y, added, adapter_.alpha / static_cast<double>(adapter_.rank));
}

void LightLayer::to(at::Device device, at::ScalarType type, bool non_blocking) {
  to(device, non_blocking);
  to(type, non_blocking);
}

void LightLayer::to(at::ScalarType type, bool non_blocking) {
  for (auto& parameter : parameters_) {
    if (parameter.key() == "weight_int8" || parameter.key() == "weight_scale") continue;
    parameter->set_data(parameter->to(type, non_blocking));
  }
  for (const auto& child : children()) child->to(type, non_blocking);
  weight_type_ = type;
}

void LightLayer::to(at::Device device, bool non_blocking) {
  for (auto& parameter : parameters_) parameter->set_data(parameter->to(device, non_blocking));
  for (const auto& child : children()) child->to(device, non_blocking);
}

void LightLayer::CopyFrom(const LightLayer& other, const std::optional<at::Device>& device) {
  parameters_.clear();
  for (const auto& parameter : other.parameters_) {
    const at::Tensor data = parameter.value().detach();
    const at::Device where = device.value_or(data.device());
    Register(parameter.key(),
             data.to(where, data.scalar_type(), /*non_blocking=*/false, /*copy=*/true),
             parameter.value().requires_grad());
  }
  const auto named = [&](const char* name) {
    const at::Tensor* tensor = parameters_.find(name);
    return tensor == nullptr ? at::Tensor() : *tensor;
  };
  weight = named("weight");
  bias = named("bias");
  int8_ = {named("weight_int8"), named("weight_scale")};
  down_ = named("adapter_down");
  up_ = named("adapter_up");
  weight_type_ = other.weight_type_;
  adapter_ = other.adapter_;
  merged_ = other.merged_;
  train(other.is_training());
}

LightLinearImpl::LightLinearImpl(const torch::nn::LinearOptions& given)
    : LightLinearImpl(*torch::nn::Linear(given)) {}

LightLinearImpl::LightLinearImpl(const torch::nn::LinearImpl& linear)
    : LightLayer("LightLinear"), options(linear.options) {
  TakeWeight(linear.weight, linear.bias);
  train(linear.is_training());
}

std::shared_ptr<torch::nn::Module> LightLinearImpl::clone(
    const std::optional<at::Device>& device) const {
  auto copy = std::make_shared<LightLinearImpl>(torch::nn::LinearOptions(1, 1));
  copy->options = options;
  copy->CopyFrom(*this, device);
  copy->product_ = product_;
  return copy;
}

std::optional<std::string> LightLinearImpl::CannotAdapt() const {
  if (product_) return "is split among ranks";
  return LightLayer::CannotAdapt();
}

std::optional<std::string> LightLinearImpl::CannotQuantize() const {
  if (product_) return "is split among ranks";
  return LightLayer::CannotQuantize();
}

/// How a module that is torch::nn::Cloneable copies its members.
void LightLinearImpl::clone_(Module& other, const std::optional<at::Device>& device) {
  *this = dynamic_cast<const LightLinearImpl&>(*other.clone(device));
}

}  // namespace plimsoll::train

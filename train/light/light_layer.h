// Linear layers and convolutions that can be made lighter where they are: given an adapter, put
// into 8 bits, made separable. They take the place of nn::Linear and nn::Conv2d, with the same
// options, the same first weights and the same names of parameters.
//
// A module of one's own calls its members by their type, so no function can put a layer of another
// type there. A member that is to become lighter later is declared as one of these; it stays the
// same object. Elements of an nn::Sequential need no such care (train/light/layers.h).
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train/light/int8_weight.h"
#include "train/light/separable.h"

namespace plimsoll::train {

/// A low-rank adapter (LoRA, Hu et al. 2021): to the product with the weight is added alpha / rank
/// times the product with `up` x `down`, two small matrices that are learnt in the weight's place.
struct AdapterOptions {
  std::int64_t rank = 8;
  double alpha = 16;
  /// Of the adapter's input, in training.
  double dropout = 0;
};

/// Throws c10::Error for options that cannot be.
void CheckAdapter(const AdapterOptions& options);

class LightLayer : public torch::nn::Module {
 public:
  /// As a parameter "weight"; undefined while it is in 8 bits or separable.
  at::Tensor weight;
  /// "bias"; undefined where there is none.
  at::Tensor bias;

  /// Parameters "adapter_down", at random, and "adapter_up", zero: nothing changes yet. The weight
  /// and the bias are frozen. Of the weight's type, in 8 bits fp32.
  void AddAdapter(const AdapterOptions& options);
  /// What the adapter had learnt is lost, unless it was merged. The weight stays frozen.
  void RemoveAdapter();
  /// Adds the adapter to the weight, for a forward without it; and takes it out again, exact but
  /// for rounding in the weight's type. Merged, the adapter is not trained.
  void Merge();
  void Unmerge();
  bool has_adapter() const { return down_.defined(); }
  bool merged() const { return merged_; }
  const AdapterOptions& adapter() const { return adapter_; }
  const at::Tensor& adapter_down() const { return down_; }
  const at::Tensor& adapter_up() const { return up_; }

  /// The weight becomes the frozen parameters "weight_int8" and "weight_scale"; the bias is frozen.
  void Quantize();
  /// A frozen weight of floating point numbers again, of the type that it had.
  void Dequantize();
  bool quantized() const { return int8_.values.defined(); }

  /// Keeps the 8-bit weight and its scale in their types.
  void to(at::Device device, at::ScalarType type, bool non_blocking = false) override;
  void to(at::ScalarType type, bool non_blocking = false) override;
  void to(at::Device device, bool non_blocking = false) override;

  /// Why the layer cannot have an adapter, or be put into 8 bits, as it is; a sentence without its
  /// subject. Nothing if it can.
  virtual std::optional<std::string> CannotAdapt() const;
  virtual std::optional<std::string> CannotQuantize() const;

 protected:
  explicit LightLayer(std::string name) : Module(std::move(name)) {}

  /// `x` is as the geometry takes it.
  at::Tensor Run(const Geometry& geometry, const at::Tensor& x) const;
  void TakeWeight(const at::Tensor& given_weight, const at::Tensor& given_bias);
  void DropWeight();
  /// For clones: all that the other one has, copied.
  void CopyFrom(const LightLayer& other, const std::optional<at::Device>& device);

 private:
  at::Tensor Delta() const;
  void Freeze();
  at::Tensor Register(const std::string& name, const at::Tensor& tensor, bool trained);

  Int8Weight int8_;
  at::ScalarType weight_type_ = at::kFloat;
  AdapterOptions adapter_;
  at::Tensor down_;
  at::Tensor up_;
  bool merged_ = false;
};

/// With an input of three dimensions faster than nn::Linear, which then adds the bias in a kernel
/// of its own: that made a step of a GPT slower by a tenth.
class LightLinearImpl : public LightLayer {
 public:
  LightLinearImpl(std::int64_t in, std::int64_t out)
      : LightLinearImpl(torch::nn::LinearOptions(in, out)) {}
  explicit LightLinearImpl(const torch::nn::LinearOptions& given);
  /// In the place of `linear`, with its very parameters.
  explicit LightLinearImpl(const torch::nn::LinearImpl& linear);

  at::Tensor forward(const at::Tensor& x) {
    return product_ ? product_(x, weight, bias) : Run(std::nullopt, x);
  }
  std::shared_ptr<Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override;

  /// Of a layer that has only a part of its weight, since ranks share it
  /// (train/parallel/tensor/tensor_parallel.h). Null: the layer has all of it.
  using Product = std::function<at::Tensor(const at::Tensor& x, const at::Tensor& weight,
                                           const at::Tensor& bias)>;
  void set_product(Product product) { product_ = std::move(product); }

  std::optional<std::string> CannotAdapt() const override;
  std::optional<std::string> CannotQuantize() const override;

  torch::nn::LinearOptions options;

 private:
  void clone_(Module& other, const std::optional<at::Device>& device) override;

  Product product_;
};
TORCH_MODULE(LightLinear);

class LightConv2dImpl : public LightLayer {
 public:
  LightConv2dImpl(std::int64_t in, std::int64_t out, torch::ExpandingArray<2> kernel)
      : LightConv2dImpl(torch::nn::Conv2dOptions(in, out, kernel)) {}
  explicit LightConv2dImpl(const torch::nn::Conv2dOptions& given);
  /// In the place of `convolution`, with its very parameters.
  explicit LightConv2dImpl(const torch::nn::Conv2dImpl& convolution);

  at::Tensor forward(const at::Tensor& x);
  std::shared_ptr<Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override;

  /// Becomes a depthwise-separable convolution with new weights, "depthwise" and "pointwise".
  void MakeSeparable();
  bool separable() const { return !separable_.is_empty(); }

  std::optional<std::string> CannotAdapt() const override;
  std::optional<std::string> CannotQuantize() const override;

  torch::nn::Conv2dOptions options;

 private:
  void clone_(Module& other, const std::optional<at::Device>& device) override;
  at::Tensor Padded(const at::Tensor& x) const;
  void FindGeometry();

  Geometry geometry_;
  /// Left, right, top and bottom, where the convolution itself cannot pad so; else empty.
  std::vector<std::int64_t> pad_before_;
  SeparableConv2d separable_{nullptr};
};
TORCH_MODULE(LightConv2d);

}  // namespace plimsoll::train

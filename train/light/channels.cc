#include "train/light/channels.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>
#include <torch/types.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "train/light/layers.h"

namespace plimsoll::train {
namespace {

namespace nn = torch::nn;

template <class... Types>
bool IsOneOf(const nn::Module& module) {
  return ((dynamic_cast<const Types*>(&module) != nullptr) || ...);
}

/// Works on each channel by itself, whatever the number of channels.
bool KeepsChannelsApart(const nn::Module& module) {
  return IsOneOf<nn::ReLUImpl, nn::ReLU6Impl, nn::LeakyReLUImpl, nn::ELUImpl, nn::SELUImpl,
                 nn::CELUImpl, nn::GELUImpl, nn::SiLUImpl, nn::MishImpl, nn::SigmoidImpl,
                 nn::TanhImpl, nn::SoftplusImpl, nn::IdentityImpl, nn::DropoutImpl>(module);
}

/// The same, of images.
bool KeepsImageChannelsApart(const nn::Module& module) {
  return IsOneOf<nn::Dropout2dImpl, nn::MaxPool2dImpl, nn::AvgPool2dImpl, nn::AdaptiveAvgPool2dImpl,
                 nn::AdaptiveMaxPool2dImpl>(module);
}

/// What takes an nn::Conv2d and an nn::Linear alike.
struct Weighted {
  nn::Conv2dImpl* convolution = nullptr;
  nn::LinearImpl* linear = nullptr;

  explicit Weighted(nn::Module& module)
      : convolution(dynamic_cast<nn::Conv2dImpl*>(&module)),
        linear(dynamic_cast<nn::LinearImpl*>(&module)) {}

  explicit operator bool() const { return convolution != nullptr || linear != nullptr; }
  nn::Module& module() const {
    return convolution != nullptr ? static_cast<nn::Module&>(*convolution) : *linear;
  }
  at::Tensor& weight() const {
    return convolution != nullptr ? convolution->weight : linear->weight;
  }
  at::Tensor& bias() const { return convolution != nullptr ? convolution->bias : linear->bias; }
  bool has_groups() const { return convolution != nullptr && convolution->options.groups() != 1; }
  void CountChannels() const {
    if (convolution != nullptr) {
      convolution->options.out_channels(weight().size(0)).in_channels(weight().size(1));
    } else {
      linear->options.out_features(weight().size(0)).in_features(weight().size(1));
    }
  }
};

/// A layer, what lies between, and the layer that reads it.
struct Consumer {
  std::shared_ptr<nn::Module> layer;
  std::vector<std::shared_ptr<nn::Module>> norms;
  /// How many of the consumer's inputs a channel is: more than one behind Flatten.
  std::int64_t inputs_per_channel = 1;
};

/// Of the batch normalization that goes with images, or with vectors; 0 if the module is none.
std::int64_t FeaturesOf(const nn::Module& norm, bool image) {
  const auto* two = dynamic_cast<const nn::BatchNorm2dImpl*>(&norm);
  if (image) return two == nullptr ? 0 : two->options.num_features();
  const auto* one = dynamic_cast<const nn::BatchNorm1dImpl*>(&norm);
  return one == nullptr ? 0 : one->options.num_features();
}

/// Finds the consumer of one layer's channels, or says why there is none to be known.
class ConsumerSearch {
 public:
  ConsumerSearch(const nn::SequentialImpl& chain, std::size_t producer) {
    const Weighted layer(*chain[producer]);
    channels_ = layer.weight().size(0);
    image_ = layer.convolution != nullptr;
    if (channels_ == 0) why_ = "has no output channels";
    for (std::size_t i = producer + 1; i < chain.size() && !found_ && why_.empty(); ++i) {
      Look(chain[i]);
    }
    if (!found_ && why_.empty()) why_ = "makes the output of the chain";
  }

  bool found() const { return found_; }
  const std::string& why() const { return why_; }
  Consumer& consumer() { return consumer_; }

 private:
  void Look(const std::shared_ptr<nn::Module>& module) {
    const bool image = image_ && !flattened_;
    if (const Weighted next(*module); next) {
      Take(module, next);
    } else if (FeaturesOf(*module, image) > 0) {
      // Behind Flatten a channel is several features.
      if (FeaturesOf(*module, image) != channels_ || flattened_) {
        why_ = "is followed by a normalization of another number of channels";
      } else if (const auto held = WeightIsHeld(*module)) {
        why_ = "is followed by a normalization that " + *held;
      }
      consumer_.norms.push_back(module);
    } else if (const auto* flatten = dynamic_cast<const nn::FlattenImpl*>(module.get())) {
      if (flatten->options.start_dim() != 1 || flatten->options.end_dim() != -1) {
        why_ = "is followed by a Flatten of other dimensions than all but the first";
      }
      flattened_ = true;
    } else if (!KeepsChannelsApart(*module) && !(image && KeepsImageChannelsApart(*module))) {
      why_ = "is followed by " + module->name() + ", of which is not known how it treats channels";
    }
  }

  void Take(const std::shared_ptr<nn::Module>& module, const Weighted& next) {
    const std::int64_t inputs = next.weight().size(1);
    // Without Flatten a Linear mixes the last dimension, which is no channel of an image. Flatten
    // puts an image's channels one after the other; those of a Linear may come in turns.
    const bool same_kind = (next.convolution != nullptr) == (image_ && !flattened_);
    const bool may_be_several = image_ && flattened_;
    if (next.has_groups()) {
      why_ = "is read by a convolution with groups";
    } else if (!same_kind || inputs % channels_ != 0 || (!may_be_several && inputs != channels_)) {
      why_ = "is read by a layer whose inputs are not its channels";
    } else if (const auto held = WeightIsHeld(*module)) {
      why_ = "is read by a layer that " + *held;
    } else {
      consumer_.layer = module;
      consumer_.inputs_per_channel = inputs / channels_;
      found_ = true;
    }
  }

  std::int64_t channels_ = 0;
  bool image_ = false;
  bool flattened_ = false;
  bool found_ = false;
  std::string why_;
  Consumer consumer_;
};

/// The same tensor with other contents.
void SetData(at::Tensor& tensor, const at::Tensor& data) {
  if (!tensor.defined()) return;
  tensor.mutable_grad() = at::Tensor();
  tensor.set_data(data.detach().contiguous());
}

void KeepChannels(at::Tensor& tensor, int dimension, const at::Tensor& kept) {
  if (tensor.defined()) SetData(tensor, tensor.detach().index_select(dimension, kept));
}

template <class Norm>
bool KeepInNorm(nn::Module& module, const at::Tensor& kept) {
  auto* norm = dynamic_cast<Norm*>(&module);
  if (norm == nullptr) return false;
  KeepChannels(norm->weight, 0, kept);
  KeepChannels(norm->bias, 0, kept);
  KeepChannels(norm->running_mean, 0, kept);
  KeepChannels(norm->running_var, 0, kept);
  norm->options.num_features(kept.numel());
  return true;
}

/// In the order that they have; those with the largest weights.
at::Tensor ChannelsToKeep(const at::Tensor& weight, const ChannelOptions& options) {
  const std::int64_t channels = weight.size(0);
  const auto out = static_cast<std::int64_t>(options.fraction * static_cast<double>(channels));
  std::int64_t stay = std::max<std::int64_t>(channels - out, 1);
  stay = (stay + options.multiple - 1) / options.multiple * options.multiple;
  stay = std::min(stay, channels);
  const at::Tensor norms = weight.detach().flatten(1).to(at::kDouble).abs().sum(1);
  const at::Tensor order = std::get<1>(norms.sort(/*stable=*/true, 0, /*descending=*/false));
  return std::get<0>(order.narrow(0, channels - stay, stay).sort());
}

void CutChannels(const Weighted& layer, const Consumer& consumer, const at::Tensor& kept) {
  KeepChannels(layer.weight(), 0, kept);
  KeepChannels(layer.bias(), 0, kept);
  layer.CountChannels();
  for (const auto& norm : consumer.norms) {
    if (!KeepInNorm<nn::BatchNorm2dImpl>(*norm, kept)) KeepInNorm<nn::BatchNorm1dImpl>(*norm, kept);
  }
  const Weighted next(*consumer.layer);
  const std::int64_t each = consumer.inputs_per_channel;
  const at::Tensor inputs = (kept.unsqueeze(1) * each + at::arange(each, kept.options())).flatten();
  KeepChannels(next.weight(), 1, inputs);
  next.CountChannels();
}

void CheckChannelOptions(const ChannelOptions& options) {
  TORCH_CHECK(options.fraction >= 0 && options.fraction < 1, "a fraction of ", options.fraction,
              " of the channels is not in [0, 1)");
  TORCH_CHECK(options.multiple >= 1, "channels cannot be a multiple of ", options.multiple);
}

}  // namespace

LightReport PruneChannels(nn::SequentialImpl& chain, const ChannelOptions& options) {
  CheckChannelOptions(options);
  LightReport report;
  report.before = FootprintOf(chain);
  const std::vector<std::string> names = chain.named_children().keys();
  std::size_t named = 0;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const Weighted layer(*chain[i]);
    if (!layer || !NameMatchesAny(names[i], options.layers)) continue;
    ++named;
    const auto held = WeightIsHeld(layer.module());
    ConsumerSearch search(chain, i);
    if (held || layer.has_groups() || !search.found()) {
      report.skipped.push_back({names[i], held                 ? *held
                                          : layer.has_groups() ? "has groups"
                                                               : search.why()});
      continue;
    }
    const at::Tensor kept = ChannelsToKeep(layer.weight(), options);
    const std::int64_t channels = layer.weight().size(0);
    const Footprint before = FootprintOf(layer.module());
    CutChannels(layer, search.consumer(), kept);
    report.changed.push_back(
        {names[i],
         std::to_string(kept.numel()) + " of " + std::to_string(channels) + " output channels",
         before, FootprintOf(layer.module())});
  }
  TORCH_CHECK(named > 0,
              "no linear layer or convolution of the chain has a name that was asked for");
  report.after = FootprintOf(chain);
  return report;
}

}  // namespace plimsoll::train

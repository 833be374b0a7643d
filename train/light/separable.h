// Depthwise-separable convolution: one filter a channel, then a mix of the channels at each point.
// With k x k filters and n outputs it has about 1/n + 1/k^2 of the weights and of the work.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/pimpl.h>

#include <string>
#include <vector>

#include "train/light/report.h"

namespace plimsoll::train {

/// In the place of an nn::Conv2d of the same options, with groups 1.
class SeparableConv2dImpl : public torch::nn::Cloneable<SeparableConv2dImpl> {
 public:
  explicit SeparableConv2dImpl(torch::nn::Conv2dOptions options);

  void reset() override;
  at::Tensor forward(const at::Tensor& x);

  const torch::nn::Conv2d& depthwise() const { return depthwise_; }
  const torch::nn::Conv2d& pointwise() const { return pointwise_; }

 private:
  torch::nn::Conv2dOptions options_;
  torch::nn::Conv2d depthwise_{nullptr};
  torch::nn::Conv2d pointwise_{nullptr};
};
TORCH_MODULE(SeparableConv2d);

/// Of an nn::Conv2d, which takes a simpler form of them than it keeps.
torch::nn::Conv2dOptions OptionsOf(const torch::nn::Conv2dImpl& convolution);

/// Replaces convolutions by separable ones with new weights, on the same device and of the same
/// type: those with a kernel of 3x3 or more and one group that become smaller by it, whose names
/// match one of the patterns (* stands for any characters). To be called before the model is
/// trained, and before the optimizer is made.
///
/// It reaches them through every container: elements of an nn::Sequential, which become a
/// SeparableConv2d, and each LightConv2d (train/light/light_layer.h), wherever it is. An nn::Conv2d
/// that is a member of somebody's module, or an element of a ModuleList or ModuleDict, is called by
/// code that knows its type; it stays as it is, and the report says so.
LightReport ReplaceConvolutions(torch::nn::Module& model,
                                const std::vector<std::string>& patterns = {"*"});

}  // namespace plimsoll::train

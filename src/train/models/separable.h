// Depthwise-separable convolution: one filter a channel, then a mix of the channels at each point.
// With k x k filters and n outputs it has about 1/n + 1/k^2 of the weights and of the work.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/pimpl.h>

#include <string>
#include <vector>

namespace plimsoll::train {

/// In the place of an nn::Conv2d of the same options, with groups 1.
class SeparableConv2dImpl : public torch::nn::Cloneable<SeparableConv2dImpl> {
 public:
  explicit SeparableConv2dImpl(torch::nn::Conv2dOptions options);

  void reset() override;
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::Conv2dOptions options_;
  torch::nn::Conv2d depthwise_{nullptr};
  torch::nn::Conv2d pointwise_{nullptr};
};
TORCH_MODULE(SeparableConv2d);

/// Replaces each nn::Conv2d that has a kernel of 3x3 or more and one group, by a separable one with
/// new weights, on the same device and of the same type. Returns how many.
///
/// It reaches those that are elements of an nn::Sequential, however deep in the model: a Sequential
/// calls whatever it holds. A convolution that is a member of somebody's module, or an element of a
/// ModuleList, is called by code that knows its type, and no C++ can put another type there; such
/// ones stay as they are, and their names go to `out_of_reach`. To have one replaced, make the
/// member an nn::Sequential of that one convolution.
int ReplaceConvolutions(torch::nn::Module& model, std::vector<std::string>* out_of_reach = nullptr);

}  // namespace plimsoll::train

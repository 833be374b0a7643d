#include "train/models/unet.h"

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/modulelist.h>

#include "train/light/separable.h"
#include "train/models/convolutions.h"

namespace plimsoll::train {
namespace {

namespace nn = torch::nn;

nn::Sequential DoubleConvolution(std::int64_t in, std::int64_t out, Normalization normalization) {
  nn::Sequential block;
  AppendConvolution(block, {.in = in, .out = out, .normalization = normalization});
  AppendRelu(block);
  AppendConvolution(block, {.in = out, .out = out, .normalization = normalization});
  AppendRelu(block);
  return block;
}

}  // namespace

UNet::UNet(const UNetOptions& options) : options_(options), head_(nullptr) {
  const auto down = register_module("down", nn::ModuleList());
  const auto up = register_module("up", nn::ModuleList());
  const auto merge = register_module("merge", nn::ModuleList());
  const auto width = [&](int level) { return options.width << level; };
  for (int level = 0; level <= kDowns; ++level) {
    const std::int64_t in = level == 0 ? options.in_channels : width(level - 1);
    down_.push_back(DoubleConvolution(in, width(level), options.normalization));
    down->push_back(down_.back());
  }
  for (int level = kDowns - 1; level >= 0; --level) {
    up_.emplace_back(
        nn::ConvTranspose2dOptions(width(level + 1), width(level), /*kernel=*/2).stride(2));
    up->push_back(up_.back());
    merge_.push_back(DoubleConvolution(width(level + 1), width(level), options.normalization));
    merge->push_back(merge_.back());
  }
  head_ = register_module(
      "head", LightConv2d(nn::Conv2dOptions(options.width, options.classes, /*kernel=*/1)));
  if (options.separable) ReplaceConvolutions(*this);
}

/// Pooling belongs to the block: its input is kept for the way up anyway, its output then is not.
at::Tensor UNet::Down(int level, const at::Tensor& x) const {
  const auto block = [convolve = down_[static_cast<std::size_t>(level)],
                      level](const at::Tensor& in) mutable {
    return convolve->forward(level == 0 ? in : at::max_pool2d(in, 2));
  };
  return RunBlock(level, block, x);
}

/// So does the concatenation: both halves are kept anyway.
at::Tensor UNet::Up(int step, const at::Tensor& below, const at::Tensor& skip) const {
  const auto index = static_cast<std::size_t>(step);
  const auto block = [raise = up_[index], convolve = merge_[index]](
                         const at::Tensor& small, const at::Tensor& same) mutable {
    return convolve->forward(at::cat({same, raise(small)}, 1));
  };
  return RunBlock(kDowns + 1 + step, block, below, skip);
}

at::Tensor UNet::forward(const at::Tensor& images) {
  constexpr std::int64_t kMultiple = 1 << kDowns;
  TORCH_CHECK(
      images.dim() == 4 && images.size(2) % kMultiple == 0 && images.size(3) % kMultiple == 0,
      "a U-Net takes images whose sides are multiples of ", kMultiple, ", not ", images.sizes());
  std::vector<at::Tensor> skips;
  at::Tensor x = images;
  for (int level = 0; level <= kDowns; ++level) {
    x = Down(level, x);
    skips.push_back(x);
  }
  skips.pop_back();
  for (int step = 0; step < kDowns; ++step) {
    x = Up(step, x, skips.back());
    skips.pop_back();
  }
  return head_(x);
}

at::Tensor UNet::Loss(const at::Tensor& images, const at::Tensor& masks) {
  return nn::functional::cross_entropy(forward(images), masks);
}

}  // namespace plimsoll::train

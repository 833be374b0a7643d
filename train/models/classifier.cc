#include "train/models/classifier.h"

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/pooling.h>

#include "train/light/separable.h"
#include "train/models/convolutions.h"

namespace plimsoll::train {
namespace {

namespace nn = torch::nn;

}  // namespace

ResidualBlockImpl::ResidualBlockImpl(std::int64_t in, std::int64_t out, std::int64_t stride,
                                     Normalization normalization)
    : body_(register_module("body", nn::Sequential())), shortcut_(nullptr) {
  AppendConvolution(body_,
                    {.in = in, .out = out, .stride = stride, .normalization = normalization});
  AppendRelu(body_);
  AppendConvolution(body_, {.in = out, .out = out, .normalization = normalization});
  if (in == out && stride == 1) return;
  shortcut_ = register_module("shortcut", nn::Sequential());
  AppendConvolution(
      shortcut_,
      {.in = in, .out = out, .kernel = 1, .stride = stride, .normalization = normalization});
}

at::Tensor ResidualBlockImpl::forward(const at::Tensor& x) {
  const at::Tensor aside = shortcut_.is_empty() ? x : shortcut_->forward(x);
  return body_->forward(x).add_(aside).relu_();
}

Classifier::Classifier(const ClassifierOptions& options)
    : options_(options), stem_(register_module("stem", nn::Sequential())), head_(nullptr) {
  AppendConvolution(stem_, {.in = options.in_channels,
                            .out = options.width,
                            .kernel = 7,
                            .stride = 2,
                            .normalization = options.normalization});
  AppendRelu(stem_);
  stem_->push_back(nn::MaxPool2d(nn::MaxPool2dOptions(3).stride(2).padding(1)));
  const auto blocks = register_module("blocks", nn::ModuleList());
  std::int64_t in = options.width;
  for (int stage = 0; stage < kStages; ++stage) {
    for (std::int64_t layer = 0; layer < options.layers; ++layer) {
      const std::int64_t out = options.width << stage;
      blocks_.emplace_back(in, out, stage > 0 && layer == 0 ? 2 : 1, options.normalization);
      blocks->push_back(blocks_.back());
      in = out;
    }
  }
  head_ = register_module("head", LightLinear(in, options.classes));
  if (options.separable) ReplaceConvolutions(*this);
}

at::Tensor Classifier::forward(const at::Tensor& images) {
  std::vector<Block> chain;
  for (ResidualBlock& block : blocks_) {
    chain.emplace_back([block](const at::Tensor& in) mutable { return block(in); });
  }
  return head_(RunChain(chain, stem_->forward(images)).mean({2, 3}));
}

at::Tensor Classifier::Loss(const at::Tensor& images, const at::Tensor& labels) {
  return nn::functional::cross_entropy(forward(images), labels);
}

}  // namespace plimsoll::train

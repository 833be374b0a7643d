#include "train/models/convolutions.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/normalization.h>

#include <numeric>

namespace plimsoll::train {
namespace {

namespace nn = torch::nn;

/// Eight where that divides the channels.
std::int64_t GroupsOf(std::int64_t channels) { return std::gcd(channels, std::int64_t{8}); }

}  // namespace

void AppendConvolution(nn::Sequential& to, const ConvolutionOptions& options) {
  // A normalization takes any bias away again.
  const bool bias = options.normalization == Normalization::kNone;
  to->push_back(nn::Conv2d(nn::Conv2dOptions(options.in, options.out, options.kernel)
                               .stride(options.stride)
                               .padding(options.kernel / 2)
                               .bias(bias)));
  if (options.normalization == Normalization::kGroup) {
    to->push_back(nn::GroupNorm(GroupsOf(options.out), options.out));
  } else if (options.normalization == Normalization::kBatch) {
    to->push_back(nn::BatchNorm2d(options.out));
  }
}

void AppendRelu(nn::Sequential& to) { to->push_back(nn::ReLU(nn::ReLUOptions(true))); }

}  // namespace plimsoll::train

// Parts of the models for images.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include "train/models/model.h"

namespace plimsoll::train {

struct ConvolutionOptions {
  std::int64_t in = 0;
  std::int64_t out = 0;
  std::int64_t kernel = 3;
  std::int64_t stride = 1;
  Normalization normalization = Normalization::kGroup;
};

/// A convolution that keeps the size (but for its stride), and its normalization. In a Sequential,
/// where ReplaceConvolutions can reach it.
void AppendConvolution(torch::nn::Sequential& to, const ConvolutionOptions& options);

void AppendRelu(torch::nn::Sequential& to);

}  // namespace plimsoll::train

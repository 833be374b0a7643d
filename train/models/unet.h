// A U-Net, which says for each pixel of an image what it belongs to.
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>

#include <vector>

#include "train/light/light_layer.h"
#include "train/models/model.h"

namespace plimsoll::train {

struct UNetOptions {
  std::int64_t in_channels = 3;
  std::int64_t classes = 2;
  /// Channels at full size; twice as many at each half of it.
  std::int64_t width = 64;
  /// Batch normalization makes a batch more than the sum of its micro-batches.
  Normalization normalization = Normalization::kGroup;
  /// Depthwise-separable convolutions in place of the 3x3 ones.
  bool separable = false;
};

/// A batch is images [samples, channels, height, width], both sides multiples of 16, and masks
/// [samples, height, width] of class numbers. Each double convolution, with what leads to it, is a
/// checkpoint block: five on the way down, four on the way up.
class UNet : public TrainModel {
 public:
  /// So often the way down halves the sides.
  static constexpr int kDowns = 4;

  explicit UNet(const UNetOptions& options);

  at::Tensor forward(const at::Tensor& images);
  at::Tensor Loss(const at::Tensor& images, const at::Tensor& masks);

  at::Tensor Loss(const Batch& batch) override { return Loss(batch.tensors[0], batch.tensors[1]); }
  int checkpoint_blocks() const override { return 2 * kDowns + 1; }
  const UNetOptions& options() const { return options_; }

 private:
  at::Tensor Down(int level, const at::Tensor& x) const;
  at::Tensor Up(int step, const at::Tensor& below, const at::Tensor& skip) const;

  UNetOptions options_;
  std::vector<torch::nn::Sequential> down_;
  std::vector<torch::nn::ConvTranspose2d> up_;
  std::vector<torch::nn::Sequential> merge_;
  LightConv2d head_;
};

}  // namespace plimsoll::train

// A residual network that says what an image shows.
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <vector>

#include "train/light/light_layer.h"
#include "train/models/model.h"

namespace plimsoll::train {

/// The defaults are ResNet-18, but for its normalization.
struct ClassifierOptions {
  std::int64_t in_channels = 3;
  std::int64_t classes = 1000;
  /// Channels of the first of four stages; each has twice as many as the one before.
  std::int64_t width = 64;
  /// Residual blocks of a stage.
  std::int64_t layers = 2;
  Normalization normalization = Normalization::kGroup;
  bool separable = false;
};

/// Two convolutions around which the input goes by.
class ResidualBlockImpl : public torch::nn::Module {
 public:
  ResidualBlockImpl(std::int64_t in, std::int64_t out, std::int64_t stride,
                    Normalization normalization);

  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::Sequential body_;
  /// Null where the shape stays.
  torch::nn::Sequential shortcut_;
};
TORCH_MODULE(ResidualBlock);

/// A batch is images [samples, channels, height, width] and class numbers [samples]. Each residual
/// block is a checkpoint block.
class Classifier : public TrainModel {
 public:
  explicit Classifier(const ClassifierOptions& options);

  at::Tensor forward(const at::Tensor& images);
  at::Tensor Loss(const at::Tensor& images, const at::Tensor& labels);

  at::Tensor Loss(const Batch& batch) override { return Loss(batch.tensors[0], batch.tensors[1]); }
  int checkpoint_blocks() const override { return static_cast<int>(blocks_.size()); }
  const ClassifierOptions& options() const { return options_; }

 private:
  static constexpr int kStages = 4;

  ClassifierOptions options_;
  torch::nn::Sequential stem_;
  std::vector<ResidualBlock> blocks_;
  LightLinear head_;
};

}  // namespace plimsoll::train

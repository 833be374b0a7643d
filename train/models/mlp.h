// Three linear layers: the network with which guides to PyTorch's memory begin.
#pragma once

#include <vector>

#include "train/light/light_layer.h"
#include "train/models/model.h"

namespace plimsoll::train {

struct MlpOptions {
  std::int64_t inputs = 1000;
  /// Of the first hidden layer; the second has half.
  std::int64_t hidden = 2000;
  std::int64_t classes = 10;
};

/// A batch is inputs [samples, ...], flattened, and class numbers [samples]. Each layer is a
/// checkpoint block.
class Mlp : public TrainModel {
 public:
  explicit Mlp(const MlpOptions& options);

  at::Tensor forward(const at::Tensor& inputs);
  at::Tensor Loss(const at::Tensor& inputs, const at::Tensor& labels);

  at::Tensor Loss(const Batch& batch) override { return Loss(batch.tensors[0], batch.tensors[1]); }
  int checkpoint_blocks() const override { return static_cast<int>(layers_.size()); }
  std::vector<ModelLayer> AsLayers() const override;
  const MlpOptions& options() const { return options_; }

 private:
  MlpOptions options_;
  std::vector<LightLinear> layers_;
};

}  // namespace plimsoll::train

// What the trainer asks of a model, and the models that come with the library.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "train/checkpointing/checkpoint_policy.h"
#include "train/data/batch.h"

namespace plimsoll::train {

struct ModelLayer;

class TrainModel : public torch::nn::Module, public Checkpointable {
 public:
  /// The mean over all that Weight counts.
  virtual at::Tensor Loss(const Batch& batch) = 0;
  /// What the loss is a mean over: samples, or tokens. Losses of micro-batches, weighted by it, add
  /// up to the loss of the whole batch.
  virtual double Weight(const Batch& batch) const { return static_cast<double>(batch.size()); }
  /// The same model, with the very same parameters, as a sequence (train/models/model_layers.h);
  /// its checkpoint policy is left behind. Nothing for a model that is none.
  virtual std::vector<ModelLayer> AsLayers() const;
};

enum class Normalization { kGroup, kBatch, kNone };
/// "group", "batch", "none".
Normalization ParseNormalization(std::string_view text);

/// Sizes of any of the models; each looks at those that it has. Zero means the model's own choice.
struct ModelSizes {
  std::int64_t width = 0;
  std::int64_t layers = 0;
  std::int64_t classes = 0;
  /// Of the GPT.
  std::int64_t vocabulary = 0;
  std::int64_t context = 0;
  std::int64_t heads = 0;
  double dropout = 0;
  /// Of images; of the MLP, its inputs.
  std::int64_t in_channels = 0;
  Normalization normalization = Normalization::kGroup;
  bool separable = false;
};

/// "gpt", "unet", "classifier" or "mlp".
std::shared_ptr<TrainModel> MakeModel(std::string_view name, const ModelSizes& sizes = {});

}  // namespace plimsoll::train

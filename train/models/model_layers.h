// A model as a sequence of layers, so that it can be cut anywhere between two of them.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "train/checkpointing/checkpoint.h"
#include "train/data/batch.h"

namespace plimsoll::train {

struct ModelLayer {
  /// What it has parameters and buffers in, by the names that they have in the whole model, such as
  /// "blocks.3". Layers may share some.
  std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> modules;
  /// Of what the layer before it gave, which is nothing for the first one, and of the rows that
  /// this is about. The last one gives the loss, as TrainModel::Loss. It changes nothing of what it
  /// is given in place, and holds nothing of other layers, which may be gone.
  std::function<Tensors(const Tensors& given, const Batch& rows)> forward;

  /// Each once.
  Tensors parameters() const;
  Tensors buffers() const;
};

/// From the first to the last.
using ModelLayers = std::vector<ModelLayer>;

/// Makes its modules those of the model, under their names, where they are not so already.
void RegisterLayer(torch::nn::Module& model, const ModelLayer& layer);

/// One for each module, from a tensor to a tensor, the first of the batch's first tensor; then the
/// loss, of the last result and the rows.
ModelLayers LayersOfSequential(
    const torch::nn::Sequential& modules,
    std::function<at::Tensor(const at::Tensor& result, const Batch& rows)> loss);

}  // namespace plimsoll::train

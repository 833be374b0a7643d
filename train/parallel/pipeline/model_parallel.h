// Model parallel, the simple way: the layers of a model on several devices of one process.
#pragma once

#include <torch/nn/module.h>

#include <vector>

#include "train/models/model_layers.h"
#include "train/parallel/pipeline/stage_split.h"

namespace plimsoll::train {

/// The devices work one after the other: for models that do not fit on one. A layer that shares
/// parameters with an earlier one is on the device of that one.
class ModelParallel : public torch::nn::Module {
 public:
  /// The layers are cut so that the fullest device has as little as can be, in a step with these
  /// rows. They are measured on the first device, one at a time.
  ModelParallel(ModelLayers layers, const std::vector<c10::Device>& devices, const Batch& rows,
                double optimizer_state = 2);
  /// The next split[i] of the layers go to devices[i].
  ModelParallel(ModelLayers layers, const std::vector<c10::Device>& devices,
                const std::vector<int>& split);

  /// On the last layer's device; the batch may be anywhere.
  at::Tensor Loss(const Batch& batch) const;
  /// Of each layer.
  const std::vector<c10::Device>& devices() const { return devices_; }

 private:
  ModelLayers layers_;
  std::vector<c10::Device> devices_;
};

/// For each layer the first of those that must be where it is, as they share parameters, with it or
/// among one another; itself where there is none before it.
std::vector<int> FirstOfShared(const ModelLayers& layers);
/// How many of the layers each device gets. What layers that share parameters take counts where the
/// first of them is.
std::vector<int> SplitOverDevices(const std::vector<int>& first_of_shared,
                                  std::vector<LayerFigures> figures, int devices);

}  // namespace plimsoll::train

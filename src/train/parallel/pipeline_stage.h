// The layers of a pipeline that one rank has.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "train/checkpointing/checkpoint_policy.h"
#include "train/models/model_layers.h"
#include "train/parallel/pipeline_schedule.h"

namespace plimsoll::train {

/// A parameter of layers that are on several ranks of the pipeline: each has a copy.
struct TiedParameter {
  at::Tensor parameter;
  /// Ranks of the pipeline, the least first.
  std::vector<int> holders;
};

/// As even as can be: how many of the layers each part gets.
std::vector<int> EvenSplit(int layers, int parts);

class PipelineStage {
 public:
  /// Part p gets the next split[p] of the layers. Those of this rank go to the device; the others
  /// are let go. Checkpoints are numbered by layers of the whole, and none goes over a cut.
  PipelineStage(ModelLayers layers, const std::vector<int>& split, const PipelineShape& shape,
                int rank, c10::Device device, CheckpointPolicy checkpoint);

  /// Of this rank's layers, by their names in the whole model.
  torch::nn::Module& model() { return *model_; }
  const std::vector<TiedParameter>& tied() const { return tied_; }

  Tensors Forward(int chunk, const Tensors& given, const Batch& rows) const;

 private:
  void FindTied(const ModelLayers& layers, const std::vector<int>& rank_of);

  struct Chunk {
    /// Among all.
    int first = 0;
    ModelLayers layers;
  };
  int rank_;
  CheckpointPolicy checkpoint_;
  std::vector<Chunk> chunks_;
  std::shared_ptr<torch::nn::Module> model_;
  std::vector<TiedParameter> tied_;
};

}  // namespace plimsoll::train

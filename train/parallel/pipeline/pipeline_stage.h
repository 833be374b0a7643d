// The layers of a pipeline that one rank has.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "train/checkpointing/checkpoint_policy.h"
#include "train/models/model_layers.h"
#include "train/parallel/pipeline/pipeline_schedule.h"

namespace plimsoll::train {

/// A parameter of layers that are on several ranks of the pipeline: each has a copy.
struct TiedParameter {
  at::Tensor parameter;
  /// Ranks of the pipeline, the least first.
  std::vector<int> holders;
};

/// As even as can be: how many of the layers each part gets.
std::vector<int> EvenSplit(int layers, int parts);

/// What lives during each forward of some rows: precision, where saved tensors go. May be null.
using ForwardScope = std::function<std::shared_ptr<void>(const Batch& rows)>;

/// This rank's layers as a module. Its blocks are they, numbered through.
class StageModel final : public torch::nn::Module, public Checkpointable {
 public:
  StageModel() : Module("PipelineStage") {}

  int checkpoint_blocks() const override { return layers_; }
  void Add(const ModelLayer& layer);

 private:
  int layers_ = 0;
};

class PipelineStage {
 public:
  /// Part p gets the next split[p] of the layers. Those of this rank go to the device; the others
  /// are let go. Checkpoints are numbered by layers of the whole, and none goes over a cut.
  PipelineStage(ModelLayers layers, const std::vector<int>& split, const PipelineShape& shape,
                int rank, c10::Device device, const CheckpointPolicy& checkpoint);

  /// Of this rank's layers, by their names in the whole model.
  const std::shared_ptr<StageModel>& model() const { return model_; }
  /// What a policy by layers of the whole says of this rank's blocks. None goes over a cut.
  CheckpointPolicy OwnPart(const CheckpointPolicy& of_whole) const;
  void set_forward_scope(ForwardScope scope) { scope_ = std::move(scope); }
  const std::vector<TiedParameter>& tied() const { return tied_; }

  /// Rows that lie elsewhere are moved to the device for it.
  Tensors Forward(int chunk, const Tensors& given, const Batch& rows) const;

 private:
  void FindTied(const ModelLayers& layers, const std::vector<int>& rank_of);

  struct Chunk {
    /// Among all, and among those of this rank.
    int first_of_all = 0;
    int first = 0;
    ModelLayers layers;
  };
  int rank_;
  c10::Device device_;
  std::vector<Chunk> chunks_;
  std::shared_ptr<StageModel> model_ = std::make_shared<StageModel>();
  ForwardScope scope_;
  std::vector<TiedParameter> tied_;
};

}  // namespace plimsoll::train

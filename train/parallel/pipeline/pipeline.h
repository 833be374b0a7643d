// Pipeline: a model's layers are spread over ranks, each with some of them, and micro-batches go
// from rank to rank.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <vector>

#include "train/checkpointing/checkpoint_policy.h"
#include "train/gradients/micro_batch.h"
#include "train/models/model_layers.h"
#include "train/parallel/pipeline/pipeline_messages.h"
#include "train/parallel/pipeline/pipeline_stage.h"
#include "train/parallel/pipeline/pipeline_step.h"
#include "train/parallel/ranks/ranks.h"

namespace plimsoll::train {

struct PipelineOptions {
  /// Ranks of one pipeline; 0: all. There are as many pipelines as that many ranks go into all, and
  /// each has a part of the batch: rank r has stage r / pipelines of pipeline r % pipelines.
  int stages = 0;
  /// Parts of each rank; 1 is 1F1B, more its interleaved form.
  int chunks = 1;
  /// How many layers each of the stages x chunks parts has, as SplitStages says; that of rank 0
  /// holds for all. Empty: as even in number as can be.
  std::vector<int> split;
  /// By layers of the whole, and none goes over a cut. A Trainer chooses its own.
  CheckpointPolicy checkpoint;
  c10::Device device = c10::kCPU;
};

/// Each rank has the parameters of its own layers alone; one of several layers that are on several
/// ranks (tied weights) is on each of them, and stays the same. One rank alone trains as if this
/// were not there.
class Pipeline {
 public:
  /// Every rank makes all layers, of the same sizes, and gives them here; to have the values that
  /// one rank would have, from the same seed. Those of other ranks are let go. The pipelines begin
  /// with the values of the first. The ranks must outlive it.
  Pipeline(ModelLayers layers, Ranks& ranks, const PipelineOptions& options = {});
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  /// This rank's layers, by their names in the whole model: what the optimizer is made of.
  torch::nn::Module& model() { return *stage_->model(); }
  /// The same, for a Trainer.
  std::shared_ptr<torch::nn::Module> shared_model() { return stage_->model(); }
  int stage() const { return stage_number_; }
  int stages() const { return shape_.stages; }
  /// Which one of the pipelines: that part of the batch is to be given.
  int pipeline() const { return pipeline_; }
  int pipelines() const { return pipelines_; }
  /// What a policy by layers of the whole says of the blocks of model().
  CheckpointPolicy OwnPart(const CheckpointPolicy& of_whole) const {
    return stage_->OwnPart(of_whole);
  }
  /// How many layers each part has.
  const std::vector<int>& split() const { return split_; }

  void set_forward_scope(ForwardScope scope) { stage_->set_forward_scope(std::move(scope)); }

  /// Adds the gradients of the loss over all pipelines' rows, each row counting the same wherever
  /// it is, and returns that loss, the same on all ranks. A piece is a micro-batch. All ranks of a
  /// pipeline give the same batch; pipelines may have different numbers of rows, also none.
  at::Tensor AccumulateGradients(const Batch& batch, const Pieces& pieces);
  /// That loss alone, without gradients.
  double Evaluate(const Batch& batch, const Pieces& pieces);
  /// Scales the gradients down to a norm, over the parameters of all ranks, of at most `most`;
  /// returns what it was.
  double ClipNorm(double most);

 private:
  void CheckRanks(const PipelineOptions& options) const;
  void MakeGroups();
  Ranks* GroupOf(const std::vector<int>& members);
  void Connect();
  void BeginAlike();
  std::vector<MicroBatch> MicroBatchesOf(const Batch& batch, const Pieces& pieces);
  at::Tensor Run(const std::vector<MicroBatch>& micro_batches, const Pieces& pieces);
  void SumTied(const std::vector<at::Tensor>& earlier);

  Ranks& ranks_;
  c10::Device device_;
  PipelineShape shape_;
  std::vector<int> split_;
  int pipelines_ = 1;
  int pipeline_ = 0;
  int stage_number_ = 0;
  std::unique_ptr<PipelineStage> stage_;
  std::vector<at::Tensor> trained_;
  std::unique_ptr<PipelineWays> ways_;
  /// By their members, none of which are all.
  std::map<std::vector<int>, std::unique_ptr<Ranks>> groups_;
  /// The same stage of all pipelines.
  Ranks* same_stage_ = nullptr;
  /// Those of this pipeline that have the same tied parameter, one for each of them.
  std::vector<Ranks*> holders_;
};

}  // namespace plimsoll::train

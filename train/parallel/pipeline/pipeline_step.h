// One step of a pipeline: a rank's actions, from the first to the last.
#pragma once

#include <torch/csrc/autograd/edge.h>

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "train/parallel/pipeline/pipeline_messages.h"
#include "train/parallel/pipeline/pipeline_stage.h"

namespace plimsoll::train {

struct MicroBatch {
  Batch rows;
  /// What its loss counts in the whole batch's.
  double share = 1;
};

class PipelineStep {
 public:
  /// All must outlive it. `for_backward` is applied to each counted loss before its backward.
  PipelineStep(const PipelineStage& stage, PipelineMessages& messages, const PipelineShape& shape,
               const std::vector<MicroBatch>& micro_batches,
               std::function<at::Tensor(const at::Tensor&)> for_backward);

  /// Adds the gradients of this rank's parameters, and returns the loss on the last rank; elsewhere
  /// an undefined tensor. Without gradients, where they are off, only forwards can be done.
  at::Tensor Run(const std::vector<PipelineAction>& actions);

 private:
  /// A micro-batch between its forward and its backward through a chunk.
  struct Alive {
    Tensors given;
    /// Where backward begins. What forward gave is not kept, only how it came to be.
    std::vector<torch::autograd::Edge> roots;
    /// Of the loss; elsewhere it is received.
    Tensors gradients;
  };
  /// A chunk, and the rows of a micro-batch: what goes between parts has a form that follows from
  /// them.
  using Kind = std::pair<int, std::int64_t>;

  Kind KindOf(const PipelineAction& action) const;
  const Batch& RowsOf(const PipelineAction& action) const;
  Tensors Given(const PipelineAction& action);
  void ReceiveAhead(const PipelineAction& action);
  void Forward(const PipelineAction& action, Tensors given);
  void Give(const PipelineAction& action, const Tensors& result, Alive& alive);
  void CountLoss(const PipelineAction& action, const Tensors& result, Alive& alive);
  void Backward(const PipelineAction& action, Tensors gradients);

  const PipelineStage& stage_;
  PipelineMessages& messages_;
  PipelineShape shape_;
  const std::vector<MicroBatch>& micro_batches_;
  std::function<at::Tensor(const at::Tensor&)> for_backward_;
  /// By chunk and micro-batch.
  std::map<std::pair<int, int>, Alive> alive_;
  std::map<Kind, TensorForms> given_forms_;
  std::map<Kind, TensorForms> result_forms_;
  at::Tensor loss_;
};

}  // namespace plimsoll::train

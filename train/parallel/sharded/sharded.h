// Sharded data parallel: as data parallel, but what a rank has of the optimizer's state, of the
// gradients and of the parameters is only its part (what DeepSpeed calls ZeRO, and PyTorch FSDP).
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "train/gradients/micro_batch.h"
#include "train/parallel/ranks/ranks.h"
#include "train/parallel/sharded/flat_group.h"
#include "train/parallel/sharded/gradient_sums.h"
#include "train/parallel/sharded/sharded_blocks.h"
#include "train/parallel/sharded/sharded_options.h"

namespace plimsoll::train {

/// Blocks are those of a Checkpointable that keeps them in a ModuleList, one module a block. With
/// Shard::kParameters the parameters of a block are there while it is computed, forward or
/// backward, and those of no block from the forward's beginning to the backward's end.
class Sharded {
 public:
  /// All ranks get the parameters and buffers of rank 0. The model and the ranks must outlive it.
  Sharded(torch::nn::Module& model, Ranks& ranks, const ShardedOptions& options = {});
  Sharded(const Sharded&) = delete;
  Sharded& operator=(const Sharded&) = delete;

  /// What the optimizer is made of: this rank's parts, flat. So it must be one that treats each
  /// element by itself, as SGD and Adam do.
  std::vector<at::Tensor> parts() const;
  std::vector<at::Tensor> parts(int kind) const;

  /// Adds the gradients of the loss over all ranks' rows to those of the parts, and returns that
  /// loss. Ranks may have different numbers of rows, also none.
  at::Tensor AccumulateGradients(const LossFunction& loss, const Batch& batch,
                                 const Pieces& pieces);
  /// That loss alone, without gradients.
  double Evaluate(const LossFunction& loss, const Batch& batch, const Pieces& pieces);
  /// Scales the gradients down to a norm, over all parameters of all ranks, of at most `most`;
  /// returns what it was.
  double ClipNorm(double most);
  /// A step of the optimizer, after which all ranks have the new parameters.
  void Step(torch::optim::Optimizer& optimizer);

  /// RAII guard: all parameters are gathered, to be saved or looked at. Collective.
  class Whole {
   public:
    explicit Whole(Sharded& sharded);
    ~Whole();
    Whole(const Whole&) = delete;
    Whole& operator=(const Whole&) = delete;

   private:
    Sharded& sharded_;
  };

  /// Between steps.
  void ClearGradients();
  /// After an error in the midst of a step: drops gradients and whatever is on its way, and
  /// releases parameters, without a word to other ranks. With new connections the step can be
  /// repeated, if all ranks have done this.
  void Abandon();

  /// RAII guard: collectives become no-ops, so that one rank can try what memory a step takes.
  /// All-gathers give zeros for other ranks' parts, and sums are of this rank alone. Between steps
  /// only; at its end gradients are dropped, and the parts must be as they were.
  class Alone {
   public:
    explicit Alone(Sharded& sharded);
    ~Alone();
    Alone(const Alone&) = delete;
    Alone& operator=(const Alone&) = delete;

   private:
    Sharded& sharded_;
  };

  /// After the parts were changed by other means than Step. On all ranks at once.
  void PartsChanged();
  const torch::nn::Module& model() const { return model_; }
  /// In the order of parts().
  const std::vector<std::unique_ptr<FlatGroup>>& groups() const { return blocks_.groups(); }

  /// What this rank holds now, on the model's device.
  Bytes parameter_bytes() const;
  Bytes gradient_bytes() const;

 private:
  struct Plan;
  Plan PlanOfAll(double weight, std::size_t passes);
  at::Tensor AddAll(const LossFunction& loss, const Batch& batch, const Pieces& pieces);
  void Pass(GradientSums::Pass pass, const std::function<void()>& forward_and_backward);
  at::Tensor Forward(const LossFunction& loss, const Batch& rows);
  at::Tensor Backward(const LossFunction& loss, const Batch& rows, const Pieces& pieces,
                      double share);

  torch::nn::Module& model_;
  Ranks& ranks_;
  Shard shard_;
  bool alone_ = false;
  ShardedBlocks blocks_;
  /// Of its groups.
  GradientSums sums_;
};

}  // namespace plimsoll::train

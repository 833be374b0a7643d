// Sharded data parallel: as data parallel, but what a rank has of the optimizer's state, of the
// gradients and of the parameters is only its part (what DeepSpeed calls ZeRO, and PyTorch FSDP).
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "train/checkpointing/checkpoint_policy.h"
#include "train/gradients/micro_batch.h"
#include "train/parallel/ranks/ranks.h"
#include "train/parallel/sharded/flat_group.h"

namespace plimsoll::train {

struct ShardedOptions {
  Shard shard = Shard::kGradients;
  /// Parameters are of this type (bf16) for the model, gathered and in memory, while the parts that
  /// the optimizer steps keep the type that the model has (fp32). What else goes into the model is
  /// the caller's: its inputs, if it does not cast them. None: one type for all.
  std::optional<at::ScalarType> compute_dtype;
  /// Gradients travel as bf16, half the bytes, and are summed over ranks in it. Else both in the
  /// type of the parts, whatever type they are computed in. They are added to the parts' gradients,
  /// which have the parts' type, either way.
  bool send_bf16 = false;
  /// Parts, their gradients, and so the optimizer's state and its work, are on the host: what is
  /// gathered is copied to the device, and each sum back.
  bool offload = false;
  /// Parameters are gathered, and their gradients sent, in groups of about this size, of one block.
  Bytes group = 25 * kMiB;
  /// The parameters of the next block come while one is computed, and take their place meanwhile.
  bool ahead = true;
  /// Parameters for which it differs share no part, so that they may have options of their own in
  /// the optimizer, as those without weight decay. Null: all are of kind 0.
  std::function<int(const at::Tensor&)> kind;
};

/// Blocks are those of a Checkpointable that keeps them in a ModuleList, one module a block. With
/// Shard::kParameters the parameters of a block are there while it is computed, forward or
/// backward, and those of no block from the forward's beginning to the backward's end.
class Sharded {
 public:
  /// All ranks get the parameters and buffers of rank 0. The model and the ranks must outlive it.
  Sharded(torch::nn::Module& model, Ranks& ranks, const ShardedOptions& options = {});
  ~Sharded();
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
  const std::vector<std::unique_ptr<FlatGroup>>& groups() const { return groups_; }

  /// What this rank holds now, on the model's device.
  Bytes parameter_bytes() const;
  Bytes gradient_bytes() const;

 private:
  class Hook;
  class Blocks;
  /// A Checkpointable and the number of its block; null: what is in no block.
  using BlockKey = std::pair<const Checkpointable*, int>;

  void MakeGroups(torch::nn::Module& model, const ShardedOptions& options);
  void AddGroups(const BlockKey& block, std::vector<at::Tensor> parameters,
                 const ShardedOptions& options);
  void TakeGradient(std::size_t group, std::size_t parameter);
  void BeginSums(std::size_t down_to);
  struct Plan;
  Plan PlanOfAll(double weight, std::size_t passes);
  at::Tensor AddAll(const LossFunction& loss, const Batch& batch, const Pieces& pieces);
  void ForgetPass();
  void Pass(const std::function<void()>& forward_and_backward);
  at::Tensor Forward(const LossFunction& loss, const Batch& rows);
  at::Tensor Backward(const LossFunction& loss, const Batch& rows, const Pieces& pieces,
                      double share);
  void GatherAll();
  void GatherBlock(const BlockKey& block);
  void BeginBlock(const BlockKey& block);
  void ReleaseBlock(const BlockKey& block);

  torch::nn::Module& model_;
  Ranks& ranks_;
  Shard shard_;
  bool ahead_;
  bool alone_ = false;
  std::vector<std::unique_ptr<FlatGroup>> groups_;
  std::vector<int> kinds_;
  std::map<BlockKey, std::vector<std::size_t>> groups_of_;
  std::vector<bool> complete_;
  /// Sums begin from the last group to the first, on all ranks alike; those from here on have
  /// begun.
  std::size_t begun_ = 0;
  /// Whether this backward's gradients are sent.
  bool send_ = false;
  /// Whether they are of rows, and not only to do what the other ranks do.
  bool counts_ = true;
  std::deque<std::size_t> on_their_way_;
};

}  // namespace plimsoll::train

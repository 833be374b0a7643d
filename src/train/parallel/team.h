// Who makes the steps of a training: one process alone, or ranks together. What Trainer does
// differently for each is here.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "train/micro_batch.h"
#include "train/not_finite.h"
#include "train/parallel/data_parallel.h"
#include "train/parallel/ranks.h"
#include "train/parallel/sharded.h"

namespace plimsoll::train {

class Team {
 public:
  virtual ~Team() = default;
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  Ranks& ranks() { return ranks_; }

  /// The optimizer, which was made for parameters of the model and has no state, steps what this
  /// rank keeps of them.
  virtual void Adopt(torch::optim::Optimizer& /*optimizer*/) {}

  /// Adds the gradients of the loss over all ranks' rows, and returns that loss.
  virtual at::Tensor AddGradients(const LossFunction& loss, const Batch& batch,
                                  const Pieces& pieces) = 0;
  /// While what is returned lives, AddGradients takes its memory and does nothing with other ranks.
  virtual std::shared_ptr<void> BeginTrial() = 0;
  /// The loss over all ranks' rows, without gradients.
  virtual double Evaluate(const LossFunction& loss, const Batch& batch, const Pieces& pieces) = 0;
  /// As it is before a step.
  virtual void ClearGradients() = 0;
  virtual NamedTensors gradients() const = 0;
  /// Scales gradients down to this norm, over all there are.
  virtual void ClipNorm(double most) = 0;
  /// Whether it holds on all ranks, where their gradients are not the same.
  virtual bool OnAll(bool finite) { return finite; }
  /// The optimizers have made their step.
  virtual void AfterStep() {}

  /// Whether all ranks must compute the same operations in the same order, so that they need the
  /// same levers.
  virtual bool in_step() const { return false; }
  /// What this rank keeps.
  virtual Bytes parameter_bytes() const = 0;
  virtual Bytes gradient_bytes() const = 0;

 protected:
  explicit Team(Ranks& ranks) : ranks_(ranks) {}

  Ranks& ranks_;
};

struct TeamOptions {
  /// What each rank keeps only its part of; none: nothing, each has all of the model.
  std::optional<Shard> shard;
  DataParallelOptions data_parallel;
  ShardedOptions sharded;
};

/// Collective. The model and the ranks must outlive it; null: alone. Optimizers are for Adopt.
std::unique_ptr<Team> MakeTeam(torch::nn::Module& model, Ranks* ranks, const TeamOptions& options,
                               const std::vector<std::shared_ptr<torch::optim::Optimizer>>& those);

}  // namespace plimsoll::train

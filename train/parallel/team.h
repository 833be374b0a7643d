// Who makes the steps of a training: one process alone, or ranks together, each with all of the
// model or with a part of it. What Trainer does differently for each is here.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "train/common/not_finite.h"
#include "train/gradients/micro_batch.h"
#include "train/parallel/data_parallel/data_parallel.h"
#include "train/parallel/pipeline/pipeline.h"
#include "train/parallel/ranks/mesh.h"
#include "train/parallel/ranks/ranks.h"
#include "train/parallel/sharded/sharded.h"
#include "train/parallel/tensor/tensor_parallel.h"

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

  /// Where the team computes the loss itself, and is given none: what lives during each forward.
  virtual void UseForwardScope(ForwardScope /*scope*/) {}

  /// Adds the gradients of the loss over all ranks' rows, and returns that loss.
  virtual at::Tensor AddGradients(const LossFunction& loss, const Batch& batch,
                                  const Pieces& pieces) = 0;
  /// While what is returned lives, the loss and AddGradients take their memory and do nothing with
  /// other ranks. Nothing comes of it where no rank can do anything alone.
  virtual bool tries_alone() const { return true; }
  virtual std::shared_ptr<void> BeginTrial() = 0;
  /// How many of these rows to take at a time where that cannot be tried.
  virtual std::int64_t UsualRows(std::int64_t rows) const { return rows; }
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
  /// Null where no parameter is cut into parts that ranks share evenly.
  virtual Sharded* sharded() { return nullptr; }
  /// Which of the parts of a model this rank has, where it is cut by layers or within them.
  struct Part {
    /// How the model is cut, in words: the same for a save and for who loads it.
    std::string cut;
    int number = 0;
    int parts = 1;
    /// The first of those that have the same.
    bool first = true;
  };
  virtual std::optional<Part> part() const { return std::nullopt; }
  /// While what is returned lives, the model has all parameters that this rank ever has whole.
  virtual std::shared_ptr<void> WholeModel() { return {}; }
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
  /// Its model is the trainer's, which needs no loss function: the last layer is the loss.
  std::shared_ptr<Pipeline> pipeline;
  /// Has split layers of the trainer's model. Ranks that share them get the same rows, and draw the
  /// same random numbers.
  std::shared_ptr<TensorParallel> tensor;
  /// For `tensor`: whose dimension kData is data parallel. Null: all ranks share the layers.
  std::shared_ptr<Mesh> mesh;
};

/// Collective. The model and the ranks must outlive it; null: alone. Optimizers are for Adopt.
std::unique_ptr<Team> MakeTeam(torch::nn::Module& model, Ranks* ranks, const TeamOptions& options,
                               const std::vector<std::shared_ptr<torch::optim::Optimizer>>& those);

}  // namespace plimsoll::train

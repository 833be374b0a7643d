// What Trainer does differently for each kind of parallelism: one process alone, data parallel,
// sharded (ZeRO), a pipeline, tensor parallel.
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

  /// Gives the optimizer, which was made for parameters of the model and has no state, the parts of
  /// them that this rank keeps.
  virtual void Adopt(torch::optim::Optimizer& /*optimizer*/) {}

  /// A pipeline computes the loss itself: it makes this guard for each forward of a micro-batch.
  virtual void UseForwardScope(ForwardScope /*scope*/) {}

  /// Adds the gradients of the loss over all ranks' rows, and returns that loss.
  virtual at::Tensor AddGradients(const LossFunction& loss, const Batch& batch,
                                  const Pieces& pieces) = 0;
  /// Whether a rank can try a step by itself. Not in a pipeline, where each has other layers.
  virtual bool tries_alone() const { return true; }
  /// RAII guard: collectives become no-ops, but take the memory that they take. Null in a pipeline.
  virtual std::shared_ptr<void> BeginTrial() = 0;
  /// Rows of a micro-batch to begin with where the largest that fits cannot be tried.
  virtual std::int64_t UsualRows(std::int64_t rows) const { return rows; }
  /// The loss over all ranks' rows, without gradients.
  virtual double Evaluate(const LossFunction& loss, const Batch& batch, const Pieces& pieces) = 0;
  /// Gradients become what they are before a step: none, or zeros in the buckets.
  virtual void ClearGradients() = 0;
  virtual NamedTensors gradients() const = 0;
  /// Scales gradients down to this norm, over all there are.
  virtual void ClipNorm(double most) = 0;
  /// Whether gradients are finite on all ranks. Collective where ranks have different gradients.
  virtual bool OnAll(bool finite) { return finite; }
  /// To be called after the optimizers' step: a sharded model's parameters are stale then.
  virtual void AfterStep() {}

  /// Whether all ranks must compute the same operations in the same order, so that they need the
  /// same levers.
  virtual bool in_step() const { return false; }
  /// Null where parameters are not sharded.
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
  /// RAII guard: sharded or split parameters are gathered. In a pipeline each rank has its stage.
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

// Gradients and losses of a model, with the levers that are in use. Who chooses those is not its
// business.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "train/budget/budget.h"
#include "train/checkpointing/checkpoint_policy.h"
#include "train/checkpointing/offload.h"
#include "train/common/metrics.h"
#include "train/graphs/graphed_gradients.h"
#include "train/models/vocabulary_loss.h"
#include "train/optimizers/grad_scaler.h"
#include "train/planning/lever_planner.h"
#include "train/trainer/options.h"
#include "train/trainer/trained_optimizers.h"

namespace plimsoll::train {

class StepEngine {
 public:
  /// Collective. Refuses options that contradict each other or the model. The options must outlive
  /// it.
  StepEngine(std::shared_ptr<torch::nn::Module> model, const TrainedOptimizers::List& optimizers,
             LossFunction loss, const TrainerOptions& options);

  torch::nn::Module& model() { return *model_; }
  Team& team() { return *team_; }
  const TrainerOptions& options() const { return options_; }
  Budget& budget() { return budget_; }
  GradScaler& scaler() { return scaler_; }
  Metrics& metrics() { return metrics_; }
  GraphedGradients& graph() { return graph_; }
  ModelBlocks& blocks() { return blocks_; }

  const Levers& levers() const { return levers_; }
  void Use(const Levers& levers);
  /// What the options and the model leave open for a batch of so many rows.
  LeverLimits LimitsFor(std::int64_t rows) const;

  /// Adds the gradients of all ranks' rows, and returns the loss.
  at::Tensor Gradients(const Batch& batch);
  /// The loss over all ranks' rows, without gradients.
  double Evaluate(const Batch& batch, const Pieces& pieces);
  /// Throws where the batch is to be split and its loss is not what its pieces' losses make. Where
  /// no rows show it, since their loss is not finite, the next step looks again.
  void CheckLossSplits(const Batch& batch);

  /// RAII guard: gradients are those of a trial, in which a piece counts by its rows alone and no
  /// graph is captured.
  class Trying {
   public:
    explicit Trying(StepEngine& engine) : engine_(engine) { engine_.trying_ = true; }
    ~Trying() { engine_.trying_ = false; }
    Trying(const Trying&) = delete;
    Trying& operator=(const Trying&) = delete;

   private:
    StepEngine& engine_;
  };

 private:
  void CheckOptions(const TrainedOptimizers::List& optimizers) const;
  void CheckRanks() const;
  void CheckRoom() const;
  /// What lives during a forward: precision, and where saved tensors go.
  std::shared_ptr<void> ForwardScopeOf(const Batch& rows, bool saves);
  /// Whether these rows settle it.
  bool LossSplits(const Batch& rows);
  /// Of these rows at once, and of so many at a time.
  double LossOf(const Batch& rows);
  double LossInPieces(const Batch& batch, std::int64_t size);

  std::shared_ptr<torch::nn::Module> model_;
  const TrainerOptions& options_;
  LossFunction loss_;
  std::unique_ptr<Team> team_;
  Budget budget_;
  GradScaler scaler_;
  Offload offload_;
  Metrics metrics_;
  std::shared_ptr<RecomputeWatcher> statistics_;
  GraphedGradients graph_{*model_, metrics_};
  ModelBlocks blocks_;
  std::vector<VocabularyLossImpl*> vocabulary_losses_;
  Levers levers_;
  bool trying_ = false;
  bool checked_that_loss_splits_ = false;
};

}  // namespace plimsoll::train

// Trains a model within a memory budget: chooses how, does it, and gives way when memory runs out.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/budget/budget.h"
#include "train/common/metrics.h"
#include "train/optimizers/optimizer_forms.h"
#include "train/planning/levers.h"
#include "train/schedule/ema.h"
#include "train/trainer/does_not_fit.h"
#include "train/trainer/options.h"

namespace plimsoll::train {

class LeverChoice;
class StepEngine;
class TrainedOptimizers;
class TrainerState;

/// What one step did.
struct StepReport {
  std::int64_t step = 0;
  double loss = 0;
  /// From the call to its return. The device may still be at the optimizer's part, which the next
  /// step then waits for.
  double seconds = 0;
  MemoryFigures memory;
  Levers levers;
  /// None where the trainer was given an optimizer and no forms.
  std::optional<OptimizerForm> optimizer;
  double scale = 1;
  /// The gradients were not finite, so that the parameters stayed; `not_finite` says which: "loss",
  /// or the name of the first parameter whose gradient it is.
  bool skipped = false;
  std::string not_finite;
  /// Forward and backward were a CUDA graph's.
  bool graphed = false;
  /// Attempts that ran out of memory.
  int retries = 0;
  /// What the loss function added to Trainer::metrics(), of this rank's rows.
  std::map<std::string, double> metrics;
};

class Trainer {
 public:
  using Optimizers = std::vector<std::shared_ptr<torch::optim::Optimizer>>;

  /// The model must be on the device; a batch may also lie on the host. The loss function (null for
  /// a pipeline, whose last layer it is) is called with rows of a batch, under autocast where that
  /// is asked for; a step may call it more often than there are rows, since some attempts are
  /// undone. A parameter that an optimizer was given twice is stepped once.
  Trainer(std::shared_ptr<torch::nn::Module> model,
          std::shared_ptr<torch::optim::Optimizer> optimizer, LossFunction loss,
          TrainerOptions options = {});
  /// With several optimizers, each for parameters of its own; they step together or not at all.
  Trainer(std::shared_ptr<torch::nn::Module> model, Optimizers optimizers, LossFunction loss,
          TrainerOptions options = {});
  /// With an optimizer whose form is a lever: the first of those allowed with which a batch fits.
  Trainer(std::shared_ptr<torch::nn::Module> model, OptimizerForms forms, LossFunction loss,
          TrainerOptions options = {});
  ~Trainer();

  /// One step on the whole batch, which is all ranks' rows. Of a batch on the host each micro-batch
  /// is moved to the device when its turn comes, so that the device never holds all of it. The
  /// first one, and the first with a larger batch, chooses the levers; the same model, options,
  /// budget and batch size choose the same. Throws DoesNotFit if the least there is does not fit,
  /// on all ranks if it is so on one; whatever is thrown, also by the loss function, nothing has
  /// changed. But after what only one rank throws, and after a RankError, there is no going on with
  /// the others.
  StepReport Step(const Batch& batch);

  /// The loss of the batch, as `reduction` says (with kSum its sum), without gradients, with the
  /// model in evaluation and its moving averages if there are, in pieces that fit. What the loss
  /// function adds to metrics() can be read afterwards.
  double Evaluate(const Batch& batch);

  /// The least budget with which a batch of this size trains, with any of the optimizer's forms:
  /// measured by steps that are undone, during which the budget does not count.
  Bytes LeastBudget(const Batch& batch);

  /// The state that makes the next step the same bit for bit: parameters, buffers, their averages,
  /// optimizers, scaler, random numbers, the number of the step, levers. `extra` is the caller's,
  /// for example where its loader is. With several ranks each calls it; rank 0 writes the file, or
  /// where the model is in parts each its part (train/parallel/sharded/saved_in_parts.h).
  void Save(const std::filesystem::path& path, const std::string& extra = {}) const;
  /// All of it or nothing. Levers that the options set stay set; for another budget or another kind
  /// of device they are chosen anew. Returns what was given to Save as extra. With several ranks
  /// each reads the file, which may have been saved by another number of them (but one of a
  /// pipeline by the same stages, and one of split layers by as many that share them).
  std::string Load(const std::filesystem::path& path);
  /// What was given to Save as extra, with nothing loaded.
  std::string ExtraIn(const std::filesystem::path& path) const;
  /// RAII guard: the model has all its parameters on every rank, to be looked at or written as
  /// weights; in a pipeline each rank has those of its stage. Collective, and so is letting it go.
  [[nodiscard]] std::shared_ptr<void> WholeModel();

  /// As they are now: choosing another form of an optimizer makes another one.
  const Optimizers& optimizers() const;
  /// None where the options have none.
  Ema* ema() { return ema_ ? &*ema_ : nullptr; }
  /// For the loss function to add to; of this rank's rows.
  Metrics& metrics();
  /// Their means over all ranks' rows. All ranks call it, after a step or an evaluation.
  std::map<std::string, double> MetricsOfAll();
  const Levers& levers() const;
  /// None where the trainer was given an optimizer and no forms.
  std::optional<OptimizerForm> optimizer_form() const;
  /// How long a step with the chosen levers should take, by the trial that made sure of them and,
  /// for an optimizer on the host, by a small step of its own. No choice depends on it. Nothing
  /// where the batch fits as it is.
  std::optional<double> expected_seconds() const;
  std::int64_t steps() const { return steps_; }
  const Budget& budget() const;

 private:
  /// `forms` may allow none.
  Trainer(std::shared_ptr<torch::nn::Module> model, Optimizers optimizers, OptimizerForms forms,
          LossFunction loss, TrainerOptions options);

  void CheckNotSwapped() const;
  /// The ranks that ran out of memory. Then, and when it throws, nothing of the attempt is there.
  std::vector<int> Attempt(const Batch& batch, StepReport& report);
  /// The optimizers' step, for which all memory is taken; null where gradients are not finite.
  std::function<void()> Prepare(StepReport& report, const at::Tensor& loss);
  /// Whether the gradients of all ranks are, as far as the options ask; names it where not.
  bool AreFinite(StepReport& report, const at::Tensor& loss);

  TrainerOptions options_;
  /// Gradients and losses; the optimizers; how levers are chosen; saving and loading.
  std::unique_ptr<StepEngine> engine_;
  std::unique_ptr<TrainedOptimizers> optimizers_;
  std::unique_ptr<LeverChoice> choice_;
  std::unique_ptr<TrainerState> state_;
  std::optional<Ema> ema_;
  std::int64_t steps_ = 0;
};

}  // namespace plimsoll::train

// Trains a model within a memory budget: chooses how, does it, and gives way when memory runs out.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/budget/budget.h"
#include "train/checkpointing/offload.h"
#include "train/common/metrics.h"
#include "train/common/not_finite.h"
#include "train/gradients/micro_batch.h"
#include "train/graphs/graphed_gradients.h"
#include "train/models/vocabulary_loss.h"
#include "train/optimizers/grad_scaler.h"
#include "train/optimizers/optimizer_forms.h"
#include "train/parallel/team.h"
#include "train/planning/lever_planner.h"
#include "train/planning/levers.h"
#include "train/schedule/ema.h"
#include "train/schedule/learning_rate.h"
#include "train/trainer/does_not_fit.h"

namespace plimsoll::train {

class StateLoader;
class StateSaver;

enum class Precision { kFloat32, kBfloat16, kFloat16 };
/// "fp32", "bf16", "fp16".
Precision ParsePrecision(std::string_view text);
std::string_view PrecisionName(Precision precision);

struct TrainerOptions {
  c10::Device device = c10::kCPU;
  /// The most that the device may hold. None: what it has.
  std::optional<Bytes> budget;
  /// bf16 and fp16 run forward under autocast; fp16 with a gradient scaler.
  Precision precision = Precision::kFloat32;
  /// What the loss is over its rows. A loss that compares rows with each other is kWholeBatch and
  /// never split; that it is none is checked before a batch is split for the first time, on rows
  /// whose loss is finite.
  Reduction reduction = Reduction::kMean;
  /// What the loss of some rows is about, for losses that are means over tokens. Null: the rows.
  WeightFunction weight;
  /// Gradients are scaled down to this norm. 0: not.
  double clip_norm = 0;
  NotFinite not_finite = NotFinite::kStop;
  /// Over the rates that the optimizers' groups have when the trainer is made.
  std::optional<ScheduleOptions> schedule;
  /// Moving averages of the model, with which Evaluate works. They count in the budget.
  std::optional<EmaOptions> ema;
  /// Set what should not be chosen.
  std::optional<std::int64_t> micro_batch;
  /// Blocks of the model, numbered through; of a pipeline, layers of the whole.
  std::optional<CheckpointPolicy> checkpoint;
  std::optional<bool> offload;
  /// Of the model's VocabularyLoss.
  std::optional<bool> chunked_loss;
  OffloadOptions offload_options;
  /// Forward and backward are captured as a CUDA graph after the levers were chosen, and replayed:
  /// the same operations, faster where the GPU waits for the host. The loss function then runs on
  /// the host only at the capture, so what it computes there must be the same in every step. A
  /// step goes without, as if this were off, where its batch has another shape than the first had,
  /// is not on a CUDA device, or has a piece whose weight is 0; where levers offload; and where the
  /// step cannot be captured: the loss function reads numbers from the device or adds to metrics(),
  /// or a checkpointed block draws random numbers. The graph keeps the memory of a step (it counts
  /// in the budget) and a copy of the batch; where memory runs out it goes first.
  bool cuda_graph = false;
  /// Allows pieces though batch normalization then sees fewer samples at once.
  bool split_batch_norm = false;
  /// The ranks that train it together: all make a Trainer, with the same options but for the
  /// device, and call its functions together, each with rows of its own. Each row counts the same,
  /// wherever it is; a rank may have none. Null: this process alone.
  std::shared_ptr<Ranks> ranks;
  /// How they do.
  TeamOptions team;
};

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

  /// The model must be on the device. The loss function (null for a pipeline, whose last layer it
  /// is) is called with rows of a batch, under autocast where that is asked for; a step may call it
  /// more often than there are rows, since some attempts are undone. A parameter that an optimizer
  /// was given twice is stepped once.
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

  /// One step on the whole batch, which is all ranks' rows. The first one, and the first with a
  /// larger batch, chooses the levers; the same model, options, budget and batch size choose the
  /// same. Throws DoesNotFit if the least there is does not fit, on all ranks if it is so on one;
  /// whatever is thrown, also by the loss function, nothing has changed. But after what only one
  /// rank throws, and after a RankError, there is no going on with the others.
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
  /// While what is returned lives, the model has all its parameters on every rank, to be looked at
  /// or written as weights; in a pipeline each rank has those of its layers. All ranks call it, and
  /// let it go, together.
  [[nodiscard]] std::shared_ptr<void> WholeModel();

  /// As they are now: choosing another form of an optimizer makes another one.
  const Optimizers& optimizers() const { return optimizers_; }
  /// None where the options have none.
  Ema* ema() { return ema_ ? &*ema_ : nullptr; }
  /// For the loss function to add to; of this rank's rows.
  Metrics& metrics() { return metrics_; }
  /// Their means over all ranks' rows. All ranks call it, after a step or an evaluation.
  std::map<std::string, double> MetricsOfAll();
  const Levers& levers() const { return levers_; }
  /// None where the trainer was given an optimizer and no forms.
  std::optional<OptimizerForm> optimizer_form() const { return form_; }
  /// How long a step with the chosen levers should take, by the trial that made sure of them and,
  /// for an optimizer on the host, by a small step of its own. No choice depends on it. Nothing
  /// where the batch fits as it is.
  std::optional<double> expected_seconds() const { return expected_seconds_; }
  std::int64_t steps() const { return steps_; }
  const Budget& budget() const { return budget_; }

 private:
  class Trials;

  void CheckOptions() const;
  void CheckRanks() const;
  void CheckRoom() const;
  /// Each parameter is stepped once; those that this rank keeps.
  void Adopt(const Optimizers& optimizers) const;
  void SetRates();
  void CheckNotSwapped() const;
  std::shared_ptr<torch::optim::Optimizer> Made(OptimizerForm form) const;
  /// The optimizer goes on in this form, with the state that it has.
  void UseForm(OptimizerForm form);
  void Take(Optimizers optimizers, OptimizerForm form);
  std::vector<std::optional<OptimizerForm>> FormsToLoad(std::optional<OptimizerForm> saved,
                                                        bool still_good) const;
  /// Those allowed that the optimizer's state can be made into.
  std::vector<OptimizerForm> FormsToTry() const;
  std::optional<Levers> ChooseWithin(const Batch& batch, Trials& trials);
  /// To begin with where nothing can be tried: a step that runs out of memory gives way.
  Levers UntriedLevers(const Batch& batch) const;
  LeverLimits LimitsFor(std::int64_t rows) const;
  void Choose(const Batch& batch);
  /// Where some rank has to.
  void ChooseTogether(const Batch& batch);
  /// All take the form that the most frugal took, and where they compute in step the same levers.
  void AgreeOnForm(const Batch& batch);
  void AgreeOnLevers(const Batch& batch);
  /// Throws where the batch is to be split and its loss is not what its pieces' losses make. Where
  /// no rows show it, since their loss is not finite, the next step looks again.
  void CheckLossSplits(const Batch& batch);
  /// Whether these rows settle it.
  bool LossSplits(const Batch& rows);
  /// What lives during a forward: precision, and where saved tensors go.
  std::shared_ptr<void> ForwardScopeOf(const Batch& rows, bool saves);
  at::Tensor Loss(const Batch& rows);
  /// Without gradients, in a trial.
  double LossOf(const Batch& rows);
  double LossInPieces(const Batch& batch, std::int64_t size);
  void Use(const Levers& levers);
  at::Tensor Gradients(const Batch& batch);
  /// "loss", or the first parameter whose gradient is not finite.
  std::optional<std::string> NameNotFinite(const at::Tensor& loss) const;
  /// Whether the gradients of all ranks are, as far as the options ask; names it where not.
  bool AreFinite(StepReport& report, const at::Tensor& loss);
  /// The optimizers' step, for which all memory is taken; null where gradients are not finite.
  std::function<void()> Prepare(StepReport& report, const at::Tensor& loss);
  /// The ranks that ran out of memory. Then, and when it throws, nothing of the attempt is there.
  std::vector<int> Attempt(const Batch& batch, StepReport& report);
  /// `failed`: levers that ran out in this step. `full`: ranks.
  void GiveWay(const Batch& batch, std::vector<Levers>& failed, const std::vector<int>& full);
  /// Where nothing can be tried and no levers are left: whether the optimizer takes another form.
  bool GivesWayByForm(const Levers& now, const Batch& batch);
  /// Less than these levers, and none of those that failed.
  std::optional<Levers> LesserThan(const Levers& now, const Batch& batch,
                                   const std::vector<Levers>& failed);
  void TryUpwardAgain();
  Bytes LeastWithThisForm(const Batch& batch);
  /// What this rank has for itself.
  void AddOwn(StateSaver& saver) const;
  /// With moving averages.
  void AddModelAndOptimizers(StateSaver& saver) const;
  /// All else.
  void AddRest(StateSaver& saver, const std::string& extra,
               const std::vector<std::string>& own_of_all) const;
  /// What was checked, and is still to be put in place.
  struct Loaded {
    std::optional<OptimizerForm> form;
    std::string extra;
    std::vector<std::function<void()>> puts;
  };
  /// What is not in parts, of a file that was saved.
  StateLoader RestIn(const std::filesystem::path& path) const;
  StateLoader OwnPartIn(const std::filesystem::path& path) const;
  void CheckSavedAlike(StateLoader& main) const;
  void TakeFormOfSharded(StateLoader& rest, Loaded& loaded);
  void TakeModelAndOptimizers(StateLoader& loader, StateLoader& rest, Loaded& loaded);
  void TakeRest(StateLoader& loader, Loaded& loaded);
  DoesNotFit Shortage(const Batch& batch);
  FixedMemory Fixed() const;
  /// What levers depend on besides the batch; those chosen within something else are not kept.
  std::string ChosenWithin() const;

  std::shared_ptr<torch::nn::Module> model_;
  std::unique_ptr<Team> team_;
  Optimizers optimizers_;
  std::vector<torch::optim::Optimizer*> stepped_;
  /// Gradients are those of a trial.
  bool trying_ = false;
  /// None: it is not a lever.
  OptimizerForms forms_{.allowed = {}};
  std::optional<OptimizerForm> form_;
  LossFunction loss_;
  TrainerOptions options_;
  Budget budget_;
  GradScaler scaler_;
  /// By optimizer and group.
  std::vector<std::vector<double>> base_rates_;
  std::optional<Ema> ema_;
  Offload offload_;
  Metrics metrics_;
  std::shared_ptr<RecomputeWatcher> statistics_;
  GraphedGradients graph_{*model_, metrics_};
  ModelBlocks blocks_;
  std::vector<VocabularyLossImpl*> vocabulary_losses_;
  LeverPlanner planner_;

  Levers levers_;
  /// The largest batch that levers were chosen for.
  std::int64_t chosen_for_ = 0;
  std::optional<double> expected_seconds_;
  bool checked_that_loss_splits_ = false;
  std::int64_t steps_ = 0;
  /// What was given way from, the last at the end; to be gone back to.
  std::vector<Levers> better_;
  /// After this many steps without running out, the last of them is tried again; each time in vain
  /// the wait doubles.
  std::int64_t patience_ = 0;
  std::int64_t calm_steps_ = 0;
  /// What to go back to if that was too bold.
  std::optional<Levers> before_trying_;
};

}  // namespace plimsoll::train

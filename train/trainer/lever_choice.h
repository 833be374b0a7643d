// Which levers a trainer takes: chosen first, agreed on with other ranks, given way from when
// memory runs out, and gone back to.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/planning/lever_planner.h"
#include "train/trainer/does_not_fit.h"
#include "train/trainer/step_engine.h"
#include "train/trainer/step_trials.h"
#include "train/trainer/trained_optimizers.h"

namespace plimsoll::train {

class LeverChoice {
 public:
  /// Both must outlive it.
  LeverChoice(StepEngine& engine, TrainedOptimizers& optimizers);

  /// Where some rank has a larger batch than levers were chosen for: all choose. `step`: its
  /// number.
  void ChooseTogether(const Batch& batch, std::int64_t step);
  /// After enough steps without running out, the levers that were given way from are tried again.
  void TryUpwardAgain();
  /// After an attempt that ran out of memory. `failed`: levers that ran out in this step. `full`:
  /// ranks.
  void GiveWay(const Batch& batch, std::vector<Levers>& failed, const std::vector<int>& full);
  void StepIsDone();

  /// See Trainer::LeastBudget.
  Bytes LeastBudget(const Batch& batch);
  /// See Trainer::expected_seconds.
  std::optional<double> expected_seconds() const { return expected_seconds_; }

  /// What the next step's levers depend on besides the engine's, for a state to hold.
  struct History {
    /// The largest batch that levers were chosen for.
    std::int64_t chosen_for = 0;
    /// What was given way from, the last at the end; to be gone back to.
    std::vector<Levers> better;
    /// After this many steps without running out, the last of them is tried again; each time in
    /// vain the wait doubles.
    std::int64_t patience = 0;
    std::int64_t calm_steps = 0;
  };
  const History& history() const { return history_; }
  void GoOnFrom(const Levers& levers, History history);
  /// The next step chooses anew.
  void ChooseAnew() { history_.chosen_for = 0; }
  /// What levers depend on besides the batch; those chosen within something else are not kept.
  std::string ChosenWithin() const;

 private:
  LeverPlanner& planner();
  StepTrials TrialsOf(const Batch& batch) { return {engine_, optimizers_, batch}; }
  void Choose(const Batch& batch);
  /// Where nothing can be tried.
  void ChooseUntried(const Batch& batch);
  std::optional<Levers> ChooseWithin(const Batch& batch, StepTrials& trials);
  /// To begin with where nothing can be tried: a step that runs out of memory gives way.
  Levers UntriedLevers(const Batch& batch) const;
  /// All take the form that the most frugal took, and where they compute in step the same levers.
  void AgreeOnForm(const Batch& batch);
  void AgreeOnLevers(const Batch& batch);
  /// The levers that were gone back to ran out: to be tried again later still.
  void TakeBackUpward();
  /// Where nothing can be tried and no levers are left: whether the optimizer takes another form.
  bool GivesWayByForm(const Levers& now, const Batch& batch);
  /// Less than these levers, and none of those that failed.
  std::optional<Levers> LesserThan(const Levers& now, const Batch& batch,
                                   const std::vector<Levers>& failed);
  Bytes LeastWithThisForm(const Batch& batch);
  DoesNotFit ShortageOf(const Batch& batch);

  StepEngine& engine_;
  TrainedOptimizers& optimizers_;
  const TrainerOptions& options_;
  LeverPlanner planner_;
  /// As many changes of the optimizers as the planner knows of.
  int planned_for_ = 0;
  History history_;
  std::optional<double> expected_seconds_;
  /// What to go back to if trying upward was too bold.
  std::optional<Levers> before_trying_;
};

}  // namespace plimsoll::train

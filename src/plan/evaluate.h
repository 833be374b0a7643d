// What comes of a choice: the step changed as it says, lowered whole and put to the allocator.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "job/answer/growth.h"
#include "job/trial/trial.h"
#include "plan/choice.h"
#include "plan/memo.h"

namespace plimsoll {

/// One way to train the job, and what came of its trial.
struct Way {
  Choice choice;
  /// In each step of the optimizer, on all GPUs together.
  std::int64_t samples = 1;
  /// Its times are from one step of the optimizer to the next.
  TrialResult trial;
  /// What the trial took, for a WorkBudget.
  std::int64_t work = 0;
  /// The leak that ends the job. Set by EvaluateWhole alone.
  std::optional<Growth> leak = {};
  /// What was not followed of the job with these changes. Set by EvaluateWhole alone.
  std::vector<NotFollowed> not_followed = {};
  /// A change leaves out a part of the job: the rest may fit, and the job not.
  bool leaves_out_parts = false;

  /// All of it, even if everything takes as much as it may.
  bool FitsForCertain() const { return trial.surely_fits && !leaves_out_parts; }
  /// And likely without giving cached memory back to ask for it again.
  bool SurelyFits() const { return FitsForCertain() && trial.KeepsItsCache(); }
  double SamplesPerSecond() const {
    return trial.step_us > 0 ? 1e6 * double(samples) / trial.step_us : 0;
  }
  double MicrosecondsPerSample() const { return trial.step_us / double(samples); }
};

/// Remembers what it made of the step, so that another batch costs no rewriting. From any thread.
class Evaluator {
 public:
  explicit Evaluator(const PlanRequest& request) : request_(request) {}

  /// For the search: of many micro-batches the first ones are run, and the rest are estimated.
  Result<Way> Evaluate(const Choice& choice);
  /// What is shown: every micro-batch, as `predict` runs it, with the ends of ranges and its leak.
  Result<Way> EvaluateWhole(const Choice& choice);
  /// What that takes, for a WorkBudget, where Evaluate gave `way`.
  std::int64_t WorkOfWhole(const Way& way) const;
  /// The time alone, if nothing were refused for lack of memory: much cheaper.
  Result<double> StepMicroseconds(const Choice& choice);
  /// What it takes to rewrite the step and to time it, for a WorkBudget.
  std::int64_t WorkToTime() const;
  /// Too long for its rewritten forms to be kept.
  bool IsLong() const;
  /// Whether the time that was given is over.
  bool OutOfTime() const;
  /// For ParallelFor: each way that is tried holds the job as it rewrote it.
  unsigned Threads() const;
  /// How many were put to the allocator.
  std::size_t evaluations() const { return ways_.size(); }
  /// What all of it took, in requests put to the allocator.
  std::int64_t work() const { return work_; }

 private:
  using Changed = std::shared_ptr<const Job>;
  /// With one micro-batch, and with as many as are run: the time of further ones is known from
  /// these.
  struct Steps {
    Changed one;
    Changed run;
    int micro_batches = 1;
  };
  Result<Steps> StepsFor(const Choice& choice);
  Result<Steps> Accumulated(const Choice& choice, int micro_batches);
  Result<Changed> JobFor(const Choice& choice);
  Result<Changed> Rewritten(const Choice& choice) const;
  bool LeavesOutParts(const Trial& trial) const;
  Result<Way> EvaluateAnew(const Choice& choice);
  Result<Way> EvaluateWholeAnew(const Choice& choice);
  Result<Setting> SettingFor(const Changed& job, const Choice& choice) const;
  Result<double> TimeAnew(const Choice& choice);

  const PlanRequest& request_;
  Memo<std::string, Result<Changed>> jobs_;
  Memo<std::string, Result<Steps>> accumulated_;
  Memo<std::string, Result<double>> times_;
  Memo<std::string, Result<Way>> ways_, whole_;
  std::atomic<std::int64_t> work_ = 0;
};

}  // namespace plimsoll

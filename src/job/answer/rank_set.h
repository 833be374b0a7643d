// A job as its ranks run it, where the stages of a pipeline differ: one form of the job for each
// stage, tried together, so that every verdict is one of all ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "job/trial/trial.h"

namespace plimsoll {

/// The job as it was changed for each kind of rank.
struct JobForms {
  JobForms() = default;
  /// All ranks are alike.
  JobForms(std::shared_ptr<const Job> alike) : jobs{std::move(alike)} {}  // NOLINT: a job is one

  const Job& first() const { return *jobs.front(); }

  /// One, or one for each stage of a pipeline, from stage 0 on. Never empty once it is read.
  std::vector<std::shared_ptr<const Job>> jobs = {};
  std::int64_t ranks_of_each = 1;
  /// How long stages wait for each other, as a share of a step without that.
  double waiting = 0;
};

/// What one kind of ranks needs.
struct RankNeeds {
  /// From 0; the number of the first rank, and how many are like it.
  int stage = 0;
  std::int64_t first = 0;
  std::int64_t ranks = 1;
  Bytes allocated = 0;
  Bytes reserved = 0;
  /// With what lies outside PyTorch.
  Bytes device = 0;
  bool fits = true;
  /// The rest of the answer is about this stage.
  bool shown = false;
};

/// The forms of a job in one setting: card, options, batch. Copies are cheap: jobs are shared.
class RankSet {
 public:
  RankSet(Setting alike) : settings_{std::move(alike)} {}  // NOLINT: a setting is one
  static Result<RankSet> Of(const JobForms& forms, const Gpu& gpu, const PredictOptions& options);

  const std::vector<Setting>& settings() const { return settings_; }
  /// Card, batch and options are the same in all of them.
  const Setting& first() const { return settings_.front(); }
  RankSet WithBatch(std::int64_t batch) const;
  std::size_t events() const;

  std::int64_t ranks_of_each = 1;
  double waiting = 0;

 private:
  explicit RankSet(std::vector<Setting> settings) : settings_(std::move(settings)) {}

  std::vector<Setting> settings_;
};

/// A trial of each form. Not thread-safe: trials compute their parts when they are first asked.
class RankTrials {
 public:
  explicit RankTrials(const RankSet& set);
  /// An error where a form allocates nothing.
  static Result<RankTrials> Of(const RankSet& set);

  // Verdicts of all ranks. Each stops at the first rank that fails.

  bool MayFit() const;
  /// Whether the lower end of the range fits.
  bool LowerEndFits() const;
  bool SurelyFit() const;
  /// No rank leaks until it runs out, and the host has room.
  bool Last() const;
  /// Whether any rank borrows workspaces, which can be refused; how many are, of all ranks.
  bool Borrow() const;
  std::int64_t Refused() const;

  /// The rank that decides: one that runs out, else one that may, else the one with most memory.
  const Trial& Fullest() const { return trials_[FullestIndex()]; }
  /// Takes the trial out: the others are of no use any more.
  Trial TakeFullest() && { return std::move(trials_[FullestIndex()]); }
  /// Memory of the fullest, times of the slowest with the waiting of the stages.
  TrialResult Best() const { return AtPaceOfSlowest(Fullest().Best()); }
  TrialResult WithRanges() const { return AtPaceOfSlowest(Fullest().WithRanges()); }
  /// Puts the times of the slowest rank into the result of another.
  TrialResult AtPaceOfSlowest(TrialResult result) const;
  /// The time of a step, at the pace of the slowest rank; and if nothing were refused.
  double StepMicroseconds() const;
  double UnlimitedStepMicroseconds() const;
  /// A row for each stage; empty where all ranks are alike.
  std::vector<RankNeeds> Needs() const;

  /// As Trial counts it.
  std::int64_t work() const;
  std::int64_t WorkToBeSure() const;
  const std::vector<Trial>& trials() const { return trials_; }

 private:
  std::size_t FullestIndex() const;
  std::size_t FindFullest() const;

  std::vector<Trial> trials_;
  mutable std::optional<std::size_t> fullest_ = {};
  std::int64_t ranks_of_each_ = 1;
  double waiting_ = 0;
};

}  // namespace plimsoll

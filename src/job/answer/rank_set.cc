#include "job/answer/rank_set.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "job/answer/growth.h"
#include "job/answer/host_needs.h"

namespace plimsoll {

Result<RankSet> RankSet::Of(const JobForms& forms, const Gpu& gpu, const PredictOptions& options) {
  std::vector<Setting> settings;
  for (const std::shared_ptr<const Job>& job : forms.jobs) {
    Result<Setting> setting = MakeSetting(job, gpu, options);
    if (!setting) return setting.error();
    settings.push_back(std::move(*setting));
  }
  RankSet set(std::move(settings));
  set.ranks_of_each = forms.ranks_of_each;
  set.waiting = forms.waiting;
  return set;
}

RankSet RankSet::WithBatch(std::int64_t batch) const {
  RankSet set = *this;
  for (Setting& setting : set.settings_) setting = setting.WithBatch(batch);
  return set;
}

std::size_t RankSet::events() const {
  return std::accumulate(settings_.begin(), settings_.end(), std::size_t{0},
                         [](std::size_t sum, const Setting& setting) {
                           return sum + setting.variant().events.size();
                         });
}

RankTrials::RankTrials(const RankSet& set)
    : ranks_of_each_(set.ranks_of_each), waiting_(set.waiting) {
  for (const Setting& setting : set.settings()) trials_.emplace_back(setting);
}

Result<RankTrials> RankTrials::Of(const RankSet& set) {
  RankTrials trials(set);
  for (const Trial& trial : trials.trials_) {
    if (const std::optional<Error> error = AllocatesNothing(trial)) return *error;
  }
  return trials;
}

bool RankTrials::MayFit() const {
  return std::ranges::all_of(trials_, [](const Trial& trial) { return trial.decided().fits; });
}

bool RankTrials::LowerEndFits() const {
  return std::ranges::all_of(trials_, &Trial::lower_end_fits);
}

bool RankTrials::SurelyFit() const { return std::ranges::all_of(trials_, &Trial::surely_fits); }

bool RankTrials::Last() const {
  return std::ranges::all_of(trials_, [](const Trial& trial) {
    return !LeaksUntilItEnds(trial) && FitsItsHost(trial.setting());
  });
}

bool RankTrials::Borrow() const {
  return std::ranges::any_of(trials_, [](const Trial& trial) { return trial.lowered().borrows; });
}

std::int64_t RankTrials::Refused() const {
  std::int64_t refused = 0;
  for (const Trial& trial : trials_) {
    if (trial.lowered().borrows) refused += trial.decided().refused;
  }
  return refused;
}

std::size_t RankTrials::FullestIndex() const {
  if (!fullest_) fullest_ = trials_.size() == 1 ? 0 : FindFullest();
  return *fullest_;
}

std::size_t RankTrials::FindFullest() const {
  // The smallest key decides: a rank that runs out first, then one that may.
  const auto key = [](const Trial& trial) {
    const Bytes device = trial.shown().reserved + trial.setting().Outside().bytes;
    const bool lasts = !LeaksUntilItEnds(trial) && FitsItsHost(trial.setting());
    return std::tuple(trial.decided().fits, lasts, trial.surely_fits(), -device);
  };
  const auto fullest = std::ranges::min_element(trials_, {}, key);
  return static_cast<std::size_t>(fullest - trials_.begin());
}

double RankTrials::UnlimitedStepMicroseconds() const {
  double slowest = 0;
  for (const Trial& trial : trials_) slowest = std::max(slowest, DurationOf(trial.setting()).us);
  return slowest * (1 + waiting_);
}

double RankTrials::StepMicroseconds() const {
  double slowest = 0;
  for (const Trial& trial : trials_) {
    const RefusedCalls refused =
        trial.lowered().borrows ? trial.decided().refused_calls : RefusedCalls{};
    slowest = std::max(slowest, DurationOf(trial.setting(), refused).us);
  }
  return slowest * (1 + waiting_);
}

TrialResult RankTrials::AtPaceOfSlowest(TrialResult result) const {
  if (trials_.size() == 1 && waiting_ == 0) return result;
  StepDuration slowest;
  for (const Trial& trial : trials_) {
    const StepDuration duration = DurationOf(trial.setting(), trial.shown().refused_calls);
    if (duration.us > slowest.us) slowest = duration;
  }
  result.step_us = slowest.us * (1 + waiting_);
  result.step_low_us = slowest.low_us * (1 + waiting_);
  result.step_high_us = slowest.high_us * (1 + waiting_);
  result.gpu_busy_us = slowest.gpu.us;
  result.waited_us = slowest.waited_us + slowest.us * waiting_;
  return result;
}

std::vector<RankNeeds> RankTrials::Needs() const {
  std::vector<RankNeeds> needs;
  if (trials_.size() == 1) return needs;
  for (const Trial& trial : trials_) {
    const auto stage = static_cast<std::int64_t>(needs.size());
    const Peaks& peaks = trial.shown();
    needs.push_back({.stage = static_cast<int>(stage),
                     .first = stage * ranks_of_each_,
                     .ranks = ranks_of_each_,
                     .allocated = peaks.allocated,
                     .reserved = peaks.reserved,
                     .device = peaks.reserved + trial.setting().Outside().bytes,
                     .fits = trial.decided().fits});
  }
  needs[FullestIndex()].shown = true;
  return needs;
}

std::int64_t RankTrials::work() const {
  return std::accumulate(trials_.begin(), trials_.end(), std::int64_t{0},
                         [](std::int64_t sum, const Trial& trial) { return sum + trial.work(); });
}

std::int64_t RankTrials::WorkToBeSure() const {
  return std::accumulate(
      trials_.begin(), trials_.end(), std::int64_t{0},
      [](std::int64_t sum, const Trial& trial) { return sum + trial.WorkToBeSure(); });
}

}  // namespace plimsoll

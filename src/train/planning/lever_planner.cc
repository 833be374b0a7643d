#include "train/planning/lever_planner.h"

#include <algorithm>

namespace plimsoll::train {
namespace {

constexpr double kMoreMargin = 1.05;
constexpr double kMostMargin = 2;
/// How much less is aimed at when levers ran out of memory.
constexpr double kLess = 0.85;
/// Rows of the larger of the small steps.
constexpr std::int64_t kMoreRows = 4;

Levers With(const LeverLimits& limits, std::int64_t rows, CheckpointPolicy policy) {
  return {.micro_batch = rows,
          .checkpoint = std::move(policy),
          .offload = limits.offload.value_or(false)};
}

}  // namespace

CheckpointPolicy LeverPlanner::Everything(const LeverLimits& limits) const {
  if (limits.checkpoint) return *limits.checkpoint;
  return blocks_ > 0 ? CheckpointPolicy::All() : CheckpointPolicy();
}

std::optional<RecordedPair> LeverPlanner::RecordPair(const LeverLimits& limits, std::int64_t rows,
                                                     LeverTrials& trials, RecordedPair& later) {
  auto plain = trials.Record(With(limits, rows, limits.checkpoint.value_or(CheckpointPolicy())));
  if (!plain) return std::nullopt;
  RecordedPair first{.plain = std::move(plain->first), .checkpointed = std::nullopt};
  later.plain = std::move(plain->second);
  if (limits.checkpoint || blocks_ == 0) return first;
  auto all = trials.Record(With(limits, rows, CheckpointPolicy::All()));
  if (!all || !all->first.Follows(first.plain) || !all->second.Follows(later.plain)) {
    return std::nullopt;
  }
  first.checkpointed = std::move(all->first);
  later.checkpointed = std::move(all->second);
  return first;
}

bool LeverPlanner::Look(const LeverLimits& limits, LeverTrials& trials) {
  if (search_) return true;
  // Batch normalization cannot do with one row.
  const std::int64_t least = std::min<std::int64_t>(limits.may_split ? 1 : 2, limits.batch);
  RecordedPair later;
  const auto first = RecordPair(limits, least, trials, later);
  if (!first) return false;
  for (std::int64_t rows = std::min(kMoreRows, limits.batch); rows >= least; rows /= 2) {
    RecordedPair more_later = later;
    const auto more = rows == least ? first : RecordPair(limits, rows, trials, more_later);
    if (!more || !more->plain.Follows(first->plain)) continue;
    search_ = std::make_unique<LeverSearch>(BlockProfile(least, *first, rows, *more, rates_),
                                            BlockProfile(least, later, rows, more_later, rates_));
    return true;
  }
  return false;
}

std::optional<Levers> LeverPlanner::ChooseBlindly(const LeverLimits& limits, LeverTrials& trials) {
  std::vector<Levers> ways = {With(limits, 0, Everything(limits))};
  if (!limits.offload) {
    ways.push_back(ways.back());
    ways.back().offload = true;
  }
  for (Levers levers : ways) {
    for (const std::int64_t rows : MicroBatches(limits)) {
      levers.micro_batch = rows;
      if (trials.Fits(levers)) return levers;
    }
  }
  return std::nullopt;
}

std::optional<Levers> LeverPlanner::Choose(const LeverLimits& limits, LeverTrials& trials) {
  // On most machines everything fits, and there is nothing to choose.
  const Levers plain =
      With(limits, MicroBatches(limits).front(), limits.checkpoint.value_or(CheckpointPolicy()));
  if (trials.Fits(plain)) return plain;
  if (!Look(limits, trials)) return ChooseBlindly(limits, trials);
  Levers tried = plain;
  for (; margin_ < kMostMargin; margin_ *= kMoreMargin) {
    auto found = search_->Fastest(limits, trials.Room(), margin_);
    if (!found) break;
    found->levers.offload = limits.offload.value_or(false);
    if (limits.checkpoint) found->levers.checkpoint = *limits.checkpoint;
    if (found->levers == tried) continue;
    tried = found->levers;
    if (trials.Fits(tried)) return tried;
  }
  const Levers least = Least(limits, trials);
  if (least != tried && trials.Fits(least)) return least;
  return ChooseBlindly(limits, trials);
}

Levers LeverPlanner::Least(const LeverLimits& limits, LeverTrials& trials) {
  Levers least = With(limits, MicroBatches(limits).back(), Everything(limits));
  if (!limits.checkpoint && Look(limits, trials)) {
    least = search_->Smallest(limits).levers;
    least.offload = limits.offload.value_or(false);
  }
  return least;
}

std::optional<Bytes> LeverPlanner::LeastPeak(const LeverLimits& limits) {
  return search_ ? std::optional(search_->Smallest(limits).peak) : std::nullopt;
}

std::optional<Levers> LeverPlanner::Less(const Levers& levers, const LeverLimits& limits,
                                         LeverTrials& trials) {
  if (!levers.offload && !limits.checkpoint && Look(limits, trials)) {
    const LeverEstimate now = search_->EstimateOf(levers, limits);
    const Bytes base = search_->base();
    for (double part = kLess; part > 0.1; part *= kLess) {
      const auto target = base + static_cast<Bytes>(part * static_cast<double>(now.peak - base));
      const auto found = search_->Fastest(limits, target, 1);
      if (!found) break;
      if (found->levers != levers) return found->levers;
    }
    const Levers least = search_->Smallest(limits).levers;
    if (least != levers && search_->EstimateOf(least, limits).peak < now.peak) return least;
  }
  // Then half the rows, and at last the host.
  Levers less = levers;
  if (limits.may_split && !limits.micro_batch && levers.micro_batch > 1) {
    less.micro_batch = (levers.micro_batch + 1) / 2;
    return less;
  }
  less.offload = limits.offload.value_or(true);
  less.checkpoint = Everything(limits);
  return less == levers ? std::nullopt : std::optional(less);
}

}  // namespace plimsoll::train

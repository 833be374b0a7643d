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
/// The part of the room that a closer look may take.
constexpr double kCloser = 0.8;

Levers With(const LeverLimits& limits, std::int64_t rows, CheckpointPolicy policy) {
  return {.micro_batch = rows,
          .checkpoint = std::move(policy),
          .offload = limits.offload.value_or(false),
          .chunked_loss = limits.chunked_loss.value_or(false)};
}

}  // namespace

std::optional<Levers> LessUntried(const Levers& levers, const LeverLimits& limits) {
  Levers less = levers;
  for (const std::int64_t rows : MicroBatches(limits)) {
    less.micro_batch = rows;
    if (rows < levers.micro_batch) return less;
  }
  less.micro_batch = levers.micro_batch;
  if (!limits.checkpoint && levers.checkpoint != CheckpointPolicy::All()) {
    less.checkpoint = CheckpointPolicy::All();
    return less;
  }
  less.offload = true;
  if (limits.offload || levers.offload) return std::nullopt;
  return less;
}

CheckpointPolicy LeverPlanner::Everything(const LeverLimits& limits) const {
  if (limits.checkpoint) return *limits.checkpoint;
  return blocks_ > 0 ? CheckpointPolicy::All() : CheckpointPolicy();
}

std::optional<CheckpointPolicy> LeverPlanner::Outermost(const LeverLimits& limits) const {
  return limits.checkpoint ? std::nullopt : outermost_;
}

std::optional<LeverPlanner::Seen> LeverPlanner::See(const LeverLimits& limits, std::int64_t rows,
                                                    LeverTrials& trials) {
  Seen seen{.rows = rows, .first = {}, .later = {}};
  using Record = std::optional<StepRecord> RecordedSteps::*;
  const auto record = [&](const Levers& levers, Record where) {
    auto steps = trials.Record(levers);
    if (!steps) return false;
    seen.first.*where = std::move(steps->first);
    seen.later.*where = std::move(steps->second);
    return true;
  };
  const Levers plain = With(limits, rows, limits.checkpoint.value_or(CheckpointPolicy()));
  auto steps = trials.Record(plain);
  if (!steps) return std::nullopt;
  seen.first.plain = std::move(steps->first);
  seen.later.plain = std::move(steps->second);
  if (!limits.chunked_loss) {
    Levers chunked = plain;
    chunked.chunked_loss = true;
    if (!record(chunked, &RecordedSteps::chunked_loss)) return std::nullopt;
  }
  if (!limits.checkpoint && blocks_ > 0) {
    const CheckpointPolicy outermost = seen.first.plain.OutermostAlone();
    if (!record(With(limits, rows, outermost), &RecordedSteps::checkpointed)) return std::nullopt;
    const bool within = seen.first.plain.HasBlocksWithinBlocks();
    if (within) outermost_ = outermost;
    const Levers all = With(limits, rows, CheckpointPolicy::All());
    if (within && !record(all, &RecordedSteps::nested)) return std::nullopt;
  }
  const bool same = seen.first.Follow(seen.first) && seen.later.Follow(seen.later);
  return same ? std::optional(std::move(seen)) : std::nullopt;
}

void LeverPlanner::Learn(const Seen& less, const Seen& more) {
  search_ = std::make_unique<LeverSearch>(
      BlockProfile(less.rows, less.first, more.rows, more.first, rates_),
      BlockProfile(less.rows, less.later, more.rows, more.later, rates_));
}

bool LeverPlanner::Look(const LeverLimits& limits, LeverTrials& trials) {
  if (search_) return true;
  const std::int64_t least = std::min(limits.least_rows, limits.batch);
  const auto less = See(limits, least, trials);
  if (!less) return false;
  std::optional<Seen> more;
  for (std::int64_t rows = std::min(kMoreRows, limits.batch); rows > least && !more; rows /= 2) {
    more = See(limits, rows, trials);
  }
  if (!more || !more->first.Follow(less->first)) more = less;
  Learn(*less, *more);
  LookCloser(limits, *more, trials);
  return true;
}

/// What libraries need beside tensors does not grow with the rows: from 4 rows to 128 little errors
/// become large. So once more, with as many rows as should fit without any lever.
void LeverPlanner::LookCloser(const LeverLimits& limits, const Seen& less, LeverTrials& trials) {
  const Bytes base = search_->base();
  const auto room = base + static_cast<Bytes>(kCloser * static_cast<double>(trials.Room() - base));
  for (std::int64_t rows = limits.batch / 2; rows >= 2 * less.rows; rows /= 2) {
    if (search_->PlainPeak(rows) > room) continue;
    const auto more = See(limits, rows, trials);
    if (more && more->first.Follow(less.first)) {
      Learn(less, *more);
      return;
    }
  }
}

/// Those that backward comes to first are kept the shortest, so they are the first to go without a
/// checkpoint; as many of them as fit.
Levers LeverPlanner::WithFewer(Levers levers, LeverTrials& trials) const {
  int fewest = 0;
  int enough = blocks_;
  while (fewest + 1 < enough) {
    const int some = (fewest + enough) / 2;
    std::vector<CheckpointPolicy::Range> ranges;
    for (int block = 0; block < some; ++block) ranges.push_back({block, block + 1});
    Levers tried = levers;
    tried.checkpoint = CheckpointPolicy::Plan(std::move(ranges));
    if (trials.Fits(tried)) {
      levers = std::move(tried);
      enough = some;
    } else {
      fewest = some;
    }
  }
  return levers;
}

std::optional<Levers> LeverPlanner::ChooseBlindly(const LeverLimits& limits, LeverTrials& trials) {
  std::vector<Levers> ways;
  if (const auto outermost = Outermost(limits)) ways.push_back(With(limits, 0, *outermost));
  ways.push_back(With(limits, 0, Everything(limits)));
  for (Levers& way : ways) way.chunked_loss = limits.chunked_loss.value_or(true);
  if (!limits.offload) {
    ways.push_back(ways.back());
    ways.back().offload = true;
  }
  for (Levers levers : ways) {
    for (const std::int64_t rows : MicroBatches(limits)) {
      levers.micro_batch = rows;
      if (!trials.Fits(levers)) continue;
      // With offload there is nothing left to give away to an allocator that is out of breath.
      return limits.checkpoint || levers.offload ? levers : WithFewer(levers, trials);
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
  std::vector<Levers> tried = {plain};
  const auto fastest = [&](double margin) -> std::optional<Levers> {
    auto found = search_->Fastest(limits, trials.Room(), margin);
    if (!found) return std::nullopt;
    found->levers.offload = limits.offload.value_or(false);
    if (limits.checkpoint) found->levers.checkpoint = *limits.checkpoint;
    return found->levers;
  };
  const auto fits = [&](const Levers& levers) {
    if (std::ranges::count(tried, levers) > 0) return false;
    tried.push_back(levers);
    return trials.Fits(levers);
  };
  for (; margin_ < kMostMargin; margin_ *= kMoreMargin) {
    const auto found = fastest(margin_);
    if (!found) break;
    if (fits(*found)) return found;
  }
  if (const auto found = fastest(1); found && fits(*found)) return found;
  // Libraries take less room than they were seen to take where they are refused it.
  if (const auto outermost = Outermost(limits)) {
    const Levers levers = With(limits, MicroBatches(limits).front(), *outermost);
    if (!limits.may_split && fits(levers)) return levers;
  }
  const Levers least = Least(limits, trials);
  if (fits(least)) return least;
  return ChooseBlindly(limits, trials);
}

Levers LeverPlanner::Least(const LeverLimits& limits, LeverTrials& trials) {
  Levers least = With(limits, MicroBatches(limits).back(), Everything(limits));
  least.chunked_loss = limits.chunked_loss.value_or(true);
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
  if (limits.may_split && !limits.micro_batch && levers.micro_batch >= 2 * limits.least_rows) {
    less.micro_batch = (levers.micro_batch + 1) / 2;
    return less;
  }
  less.offload = limits.offload.value_or(true);
  less.checkpoint = Everything(limits);
  less.chunked_loss = limits.chunked_loss.value_or(true);
  return less == levers ? std::nullopt : std::optional(less);
}

}  // namespace plimsoll::train

// The fastest ways to train a job within a card: precisions, forms of the optimizer, settings of
// the allocator and the like are combined, with the samples in as few micro-batches as fit and the
// best blocks checkpointed.
#pragma once

#include <optional>
#include <vector>

#include "job/answer/verdict.h"
#include "plan/evaluate.h"
#include "plan/lever.h"

namespace plimsoll {

/// One lever of a way: what it does alone, and what the way would be without it.
struct LeverWorth {
  const PlanLever* lever = nullptr;
  Way alone;
  Way without;
};

struct Plan {
  /// Configurations that surely fit, one for each set of levers. Those without a leak come first,
  /// then the fastest.
  std::vector<Way> ways;
  /// The fastest that trains otherwise, an optimizer with less state say, where it is faster than
  /// all of them by a tenth or more. Where nothing else fits, such ways are among them.
  std::optional<Way> otherwise;
  /// The job as it was captured, with all samples in one pass.
  Way as_captured;
  /// The fastest with each single lever, of those that fit for certain.
  std::vector<Way> single;
  /// Of the first way.
  std::vector<LeverWorth> worth;
  /// Everything that fits and that nothing else beats in both memory and time, least memory first.
  std::vector<Way> frontier;
  /// Where nothing fits: what comes closest.
  std::optional<Way> closest;
  /// The smallest card of the catalogue on which it would fit.
  std::optional<Gpu> smallest_card;
  /// Why some levers were left out.
  std::vector<std::string> refused;
  std::size_t evaluations = 0;
  /// What the search took, in requests put to the simulated allocator.
  std::int64_t work = 0;
  /// Of a long step not every combination of levers is looked through: of so many, so many were
  /// not.
  std::size_t combinations = 0;
  std::size_t left_out = 0;
  /// The search was cut by the time that it was given.
  bool out_of_time = false;

  /// Whether a configuration fits and trains without end.
  bool Lasts() const { return !ways.empty() && !ways.front().leak; }
  /// What the answer is about.
  const Way& Shown() const { return ways.empty() ? *closest : ways.front(); }
  FitVerdict Verdict() const;
};

Result<Plan> FindPlan(const PlanRequest& request);

/// Where nobody says how many samples a step has: the largest power of two that surely fits in one
/// pass, in any precision; 1 where nothing fits.
Result<std::int64_t> DefaultSamples(const PlanRequest& request);

}  // namespace plimsoll

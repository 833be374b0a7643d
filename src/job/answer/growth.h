// What a job keeps from step to step, or each time that something comes due in it, and after how
// many steps that fills the card.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "answer/holder.h"
#include "job/trial/trial.h"

namespace plimsoll {

struct Growth {
  /// More is allocated after each step than after the one before.
  Bytes bytes = 0;
  /// That is so of every so manieth step alone, in which this comes due: "train.py:63 `if step % 50
  /// == 0:`". Empty where it is so of each.
  std::int64_t every = 1;
  std::string branch = {};
  /// What is kept of one step, by line, the largest first.
  std::vector<Holder> holders;
  /// Who keeps it, where that is known.
  std::optional<Keeper> keeper = {};
  /// So many steps run; the next one does not.
  std::int64_t steps = 0;
  /// What keeps it is full by then, and what is oldest goes; 0 where it never is.
  std::int64_t full_at = 0;
  /// What it has then beside what was seen of the job.
  Bytes uncounted = 0;
  /// What the job takes, in all that was seen of it, if nothing of a step outlives it.
  std::optional<TrialResult> without = {};

  /// Whether it ends the job before anybody would: a number kept from each step never does.
  bool EndsTheJob() const { return steps < kManySteps && !StaysWithin(); }
  bool StaysWithin() const { return full_at > 0 && steps >= full_at; }
  static constexpr std::int64_t kManySteps = 100'000;
};

/// Nothing where a later step leaves what the one before left. Of a job that fits.
std::optional<Growth> FindGrowth(const Trial& trial);

/// Whether FindGrowth would find a leak that ends the job; takes less time than to say when.
bool LeaksUntilItEnds(const Trial& trial);

}  // namespace plimsoll

// Which modules to checkpoint so that a step fits and takes the least time.
//
// Sets are scored by a whole replay, never by sums of saved bytes: the peak moves when something is
// dropped, a module that is computed again late in the backward has a peak of its own, and the
// allocator decides what is held. A replay takes milliseconds and there are 2^n sets, so which of
// them are replayed is decided by a model in which each module changes what is alive at each
// moment, and these changes add up (CheckpointModel). Below a target the model's cheapest set is
// found exactly for few blocks (CheckpointSets); by how much the replay of that set differs from
// the model says which target is tried next.
#pragma once

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/result.h"
#include "recompute/checkpoint_sets.h"

namespace plimsoll {

struct CheckpointScore {
  bool fits = false;
  /// What is in use at most, what is held for it, and what may be held.
  Bytes in_use = 0;
  Bytes high = 0;
  Bytes room = 0;
  double us = 0;
};

struct CheckpointChoice {
  /// In the order of the forward; none is part of another.
  std::vector<std::string> modules;
  CheckpointScore score;
  /// Replays save less than the model says by far, as where something else keeps the same memory
  /// free already: then no set is worth a search.
  bool model_fails = false;
};

using ScoreCheckpoints =
    std::function<Result<CheckpointScore>(const std::vector<std::string>& modules)>;

/// How much is looked for.
struct CheckpointEffort {
  /// Calls of the score.
  int replays = 24;
  /// What takes longer is of no interest.
  double most_us = std::numeric_limits<double>::infinity();
  /// How often a step goes through what the sets are of.
  int passes = 1;
};

/// No step with checkpoints that fits takes less, by the model; infinity where none fits. `plain`
/// is the score of no modules.
double LeastTime(const CheckpointSets& sets, const CheckpointScore& plain, int passes);

/// The fastest that was found to fit, or what comes closest; `plain` is the score of no modules,
/// which do not fit.
Result<CheckpointChoice> BestCheckpoints(const CheckpointSets& sets, const CheckpointScore& plain,
                                         const ScoreCheckpoints& score,
                                         const CheckpointEffort& effort = {});

}  // namespace plimsoll

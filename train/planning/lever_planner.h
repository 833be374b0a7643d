// Chooses levers: looks at small steps, takes the fastest that should fit, and makes sure by
// trying.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "train/planning/lever_search.h"

namespace plimsoll::train {

/// What the planner may do with the model. Whatever is tried leaves nothing behind.
class LeverTrials {
 public:
  virtual ~LeverTrials() = default;
  /// Whether a step of the batch fits.
  virtual bool Fits(const Levers& levers) = 0;
  /// The most that may be allocated; without a limit, what was when memory ran out.
  virtual Bytes Room() const = 0;
  /// Two pieces after each other with so many rows; the second finds the gradients of the first.
  /// Nothing where that does not fit.
  virtual std::optional<std::pair<StepRecord, StepRecord>> Record(const Levers& levers) = 0;
};

/// Levers that take less than these, where nothing can be tried: fewer rows at a time, then
/// everything checkpointed, then offload. Nothing where there are none.
std::optional<Levers> LessUntried(const Levers& levers, const LeverLimits& limits);

class LeverPlanner {
 public:
  LeverPlanner(int blocks, DeviceRates rates) : blocks_(blocks), rates_(rates) {}

  /// Nothing where nothing fits. The same limits, room and model give the same levers.
  std::optional<Levers> Choose(const LeverLimits& limits, LeverTrials& trials);
  /// Levers that should take less than these, which ran out of memory; not tried. Nothing where
  /// there are none.
  std::optional<Levers> Less(const Levers& levers, const LeverLimits& limits, LeverTrials& trials);
  /// That take the least there is.
  Levers Least(const LeverLimits& limits, LeverTrials& trials);
  /// Expected of the least; nothing where small steps did not fit.
  std::optional<Bytes> LeastPeak(const LeverLimits& limits);

 private:
  /// A first piece with some rows, and a later one.
  struct Seen {
    std::int64_t rows = 0;
    RecordedSteps first;
    RecordedSteps later;
  };

  /// False where not even small steps fit, or each goes through other blocks.
  bool Look(const LeverLimits& limits, LeverTrials& trials);
  void LookCloser(const LeverLimits& limits, const Seen& less, LeverTrials& trials);
  /// Nothing where that does not fit, or each step goes through other blocks.
  std::optional<Seen> See(const LeverLimits& limits, std::int64_t rows, LeverTrials& trials);
  void Learn(const Seen& less, const Seen& more);
  CheckpointPolicy Everything(const LeverLimits& limits) const;
  /// The same but for blocks within blocks, where small steps have shown that there are any.
  std::optional<CheckpointPolicy> Outermost(const LeverLimits& limits) const;
  /// Without small steps to go by: everything, then as much less as fits.
  Levers WithFewer(Levers levers, LeverTrials& trials) const;
  std::optional<Levers> ChooseBlindly(const LeverLimits& limits, LeverTrials& trials);

  int blocks_;
  DeviceRates rates_;
  /// None before the first look.
  std::unique_ptr<LeverSearch> search_;
  /// Set by the first look where there are blocks within blocks.
  std::optional<CheckpointPolicy> outermost_;
  /// By how much more is taken than small steps have shown. Not 1 to begin with: where memory is
  /// all taken, the allocator gives back and takes anew all the time, and waits for the GPU each
  /// time.
  double margin_ = 1.05;
};

}  // namespace plimsoll::train

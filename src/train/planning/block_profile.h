// What checkpointing each block would change at any number of rows, from small steps that were
// recorded: with nothing checkpointed and with everything, at two numbers of rows.
#pragma once

#include <optional>
#include <vector>

#include "recompute/checkpoint_model.h"
#include "train/planning/step_record.h"

namespace plimsoll::train {

/// The same rows twice.
struct RecordedPair {
  StepRecord plain;
  /// Every block checkpointed alone. None where there are no blocks.
  std::optional<StepRecord> checkpointed;
};

class BlockProfile {
 public:
  /// All of them must follow each other. With the same rows twice nothing is known of others.
  BlockProfile(std::int64_t rows, RecordedPair less, std::int64_t more_rows, RecordedPair more,
               DeviceRates rates);

  /// Alive before the step.
  Bytes base() const { return less_.plain.marks.front().alive; }
  Bytes PlainPeak(std::int64_t rows) const;
  /// Forward and backward with nothing checkpointed, in microseconds by DeviceRates.
  double Microseconds(std::int64_t rows) const;

  struct Model {
    CheckpointModel model;
    /// What each of its blocks is.
    std::vector<CheckpointPolicy::Range> ranges;
  };
  Model At(std::int64_t rows) const;

 private:
  class Modeller;

  /// A figure at these rows, from what it is at the recorded ones.
  double At(std::int64_t rows, double less, double more) const;

  std::int64_t rows_;
  std::int64_t more_rows_;
  RecordedPair less_;
  RecordedPair more_;
  DeviceRates rates_;
};

}  // namespace plimsoll::train

// What checkpointing each block would change at any number of rows, from small steps that were
// recorded: with nothing checkpointed, with every block, and with the blocks within them too, at
// two numbers of rows.
#pragma once

#include <optional>
#include <vector>

#include "recompute/checkpoint_model.h"
#include "train/planning/step_record.h"

namespace plimsoll::train {

/// The same rows each time.
struct RecordedSteps {
  StepRecord plain;
  /// Every block checkpointed alone, those within others not. None where there are no blocks.
  std::optional<StepRecord> checkpointed;
  /// Those within others too. None where there are none.
  std::optional<StepRecord> nested;
  /// Nothing checkpointed, and the loss in chunks. None where it cannot be.
  std::optional<StepRecord> chunked_loss;

  /// Whether all of them went through the same blocks as the other's plain step.
  bool Follow(const RecordedSteps& other) const;
};

class BlockProfile {
 public:
  /// All of them must follow each other. With the same rows twice nothing is known of others.
  BlockProfile(std::int64_t rows, RecordedSteps less, std::int64_t more_rows, RecordedSteps more,
               DeviceRates rates);

  /// Alive before the step.
  Bytes base() const { return less_.plain.marks.front().alive; }
  Bytes PlainPeak(std::int64_t rows) const;
  /// Forward and backward with nothing checkpointed, in microseconds by DeviceRates.
  double Microseconds(std::int64_t rows) const;

  struct Choice {
    /// Checkpointed: a block, several after each other, or one and all within it.
    std::vector<CheckpointPolicy::Range> ranges;
    bool chunked_loss = false;
  };
  struct Model {
    CheckpointModel model;
    /// What each of its blocks stands for.
    std::vector<Choice> choices;
  };
  Model At(std::int64_t rows) const;

 private:
  class Modeller;

  /// A figure at these rows, from what it is at the recorded ones.
  double At(std::int64_t rows, double less, double more) const;

  std::int64_t rows_;
  std::int64_t more_rows_;
  RecordedSteps less_;
  RecordedSteps more_;
  DeviceRates rates_;
};

}  // namespace plimsoll::train

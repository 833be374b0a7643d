// What makes a step take less memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/checkpointing/checkpoint_policy.h"

namespace plimsoll::train {

struct Levers {
  /// Rows that go through the model at a time.
  std::int64_t micro_batch = 0;
  /// Over all blocks of the model, numbered through.
  CheckpointPolicy checkpoint;
  /// What is saved for backward lies on the host.
  bool offload = false;
  /// Logits are never whole, where the model has a VocabularyLoss.
  bool chunked_loss = false;

  std::string ToString() const;
  bool operator==(const Levers&) const = default;
};

/// For another process.
std::string TextOf(const Levers& levers);
/// Of what TextOf gave.
Levers LeversFrom(const std::string& text);

/// What may be chosen. A field that is set is not.
struct LeverLimits {
  std::int64_t batch = 1;
  /// False where pieces would train another model (batch normalization).
  bool may_split = true;
  /// Of any piece; batch normalization needs two.
  std::int64_t least_rows = 1;
  std::optional<std::int64_t> micro_batch;
  std::optional<CheckpointPolicy> checkpoint;
  std::optional<bool> offload;
  /// Set where the model has no loss that can be chunked.
  std::optional<bool> chunked_loss;
};

/// The sizes that micro-batches may have, the largest first; each makes pieces that are as equal as
/// they can be: 32 rows by 12 are 11, 11 and 10.
std::vector<std::int64_t> MicroBatches(const LeverLimits& limits);

}  // namespace plimsoll::train

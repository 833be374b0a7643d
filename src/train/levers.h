// What makes a step take less memory, and how much of it is needed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "train/checkpointing/checkpoint_policy.h"

namespace plimsoll::train {

struct Levers {
  /// Rows that go through the model at a time.
  std::int64_t micro_batch = 0;
  CheckpointPolicy checkpoint;
  /// What is saved for backward lies on the host.
  bool offload = false;

  std::string ToString() const;
};

/// What may be chosen. A field that is set is not.
struct LeverLimits {
  std::int64_t batch = 1;
  /// False where pieces would train another model (batch normalization).
  bool may_split = true;
  std::optional<std::int64_t> micro_batch;
  std::optional<CheckpointPolicy> checkpoint;
  std::optional<bool> offload;
  /// Parts of the model that can be checkpointed; 0: none.
  int blocks = 0;
};

/// Checkpointing and offload from none to all, in the order of what they cost. Micro-batches not
/// set.
std::vector<Levers> Ladder(const LeverLimits& limits);

/// Seconds a row with these levers, or nothing if it does not fit.
using LeverTrial = std::function<std::optional<double>(const Levers&)>;

/// The levers with which rows go fastest, found by trying: the whole batch at once as it is, else
/// on each rung of the ladder micro-batches of 1, 2, 4... as far as they fit. Nothing if nothing
/// fits.
std::optional<Levers> ChooseLevers(const LeverLimits& limits, const LeverTrial& trial);

/// The next levers that take less, or nothing: half the micro-batch, then the next rung.
std::optional<Levers> LessThan(const Levers& levers, const LeverLimits& limits);

}  // namespace plimsoll::train

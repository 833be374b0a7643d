// Which levers to use within a budget: every size of micro-batch with the blocks whose
// checkpointing costs least, by what small steps have shown. Nothing here is timed.
#pragma once

#include <map>
#include <memory>
#include <optional>

#include "recompute/checkpoint_sets.h"
#include "train/planning/block_profile.h"
#include "train/planning/levers.h"

namespace plimsoll::train {

struct LeverEstimate {
  Levers levers;
  /// Allocated at most.
  Bytes peak = 0;
  /// Of the whole batch, by DeviceRates.
  double microseconds = 0;
};

class LeverSearch {
 public:
  /// Two profiles: of a batch in one piece, and of a later piece of several, when the gradients of
  /// those before are there.
  LeverSearch(BlockProfile whole, BlockProfile piece);

  /// The fastest within `budget`, where more than the base is expected to take `margin` times what
  /// the profiles say. Never with offload. Nothing where nothing would fit.
  std::optional<LeverEstimate> Fastest(const LeverLimits& limits, Bytes budget, double margin);
  /// What takes the least memory.
  LeverEstimate Smallest(const LeverLimits& limits);
  /// Of any levers without offload.
  LeverEstimate EstimateOf(const Levers& levers, const LeverLimits& limits);
  /// Of so many rows with nothing checkpointed.
  Bytes PlainPeak(std::int64_t rows) const { return piece_.PlainPeak(rows); }
  Bytes base() const { return piece_.base(); }

 private:
  struct Sized {
    BlockProfile::Model profile;
    CheckpointSets sets;
  };

  const BlockProfile& ProfileFor(const LeverLimits& limits, std::int64_t rows) const;
  const Sized& SizedFor(const LeverLimits& limits, std::int64_t rows);
  /// With these blocks, and the micro-batch.
  LeverEstimate Estimate(const LeverLimits& limits, std::int64_t rows, const BlockSet& set);

  BlockProfile whole_;
  BlockProfile piece_;
  /// By rows and whether that is the whole batch.
  std::map<std::pair<std::int64_t, bool>, std::unique_ptr<Sized>> sized_;
};

}  // namespace plimsoll::train

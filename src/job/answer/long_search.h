// The largest batch of a step that is too long to scan batches: memory grows by about as much with
// each sample, so that two batches tell where it ends, and a few more show it.
#pragma once

#include "job/answer/max_batch.h"

namespace plimsoll {

/// What a search tests in the end: `good` fits and `bad` does not, and nothing between was tried.
struct TestedEnds {
  std::int64_t good = 0;
  std::int64_t bad = 1;
};

TestedEnds FindEndsOfLongStep(const RankSet& ranks);
MaxBatch FindMaxBatchOfLongStep(const RankSet& ranks);

}  // namespace plimsoll

// Other ways to make batches of the same samples: what each computes, and how much of that is
// padding. From the lengths of an epoch's samples alone.
#pragma once

#include <cstdint>
#include <vector>

#include "job/file/job.h"

namespace plimsoll {

struct Batching {
  enum class Kind : std::uint8_t {
    kAsTheyCome,
    kSorted,   ///< samples of like length together
    kBuckets,  ///< sorted, and padded to a multiple of 64
    kTokens,   ///< as many samples as fit into so many tokens
    kPacked,   ///< samples one behind the other, in rows of the longest
  };
  Kind kind = Kind::kAsTheyCome;
  std::int64_t steps = 0;
  /// Of an epoch, with padding.
  std::int64_t tokens = 0;
  /// Of the heaviest batch.
  std::int64_t rows = 0;
  std::int64_t length = 0;

  std::int64_t Heaviest() const { return rows * length; }
};

struct Batchings {
  /// Of an epoch, without padding.
  std::int64_t tokens = 0;
  /// As they come first. Empty where samples have no lengths.
  std::vector<Batching> ways;
};

Batchings FindBatchings(const EpochFacts& epoch);

}  // namespace plimsoll

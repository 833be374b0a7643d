// What ranks do together in the midst of a model, with gradients. Each function is called by all
// ranks, in the same order; so is their backward, since the graphs are the same. They keep nothing
// of a group, so that a step can be given up (Ranks::Try).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "train/parallel/ranks/ranks.h"

namespace plimsoll::train {

/// Some of a length: what one rank has of it.
struct Part {
  std::int64_t begin = 0;
  std::int64_t size = 0;

  std::int64_t end() const { return begin + size; }
};
/// As even as it can be: parts differ by one at most.
Part PartOf(std::int64_t whole, int rank, int ranks);
inline Part PartOf(std::int64_t whole, const Ranks& ranks) {
  return PartOf(whole, ranks.rank(), ranks.size());
}

/// What is the same on all ranks enters what each computes its part of: backward sums over ranks.
at::Tensor CopyToRanks(const at::Tensor& x, Ranks& ranks);
/// The sum over ranks, the same on all; backward hands its gradient, the same on all, to each.
at::Tensor SumOverRanks(const at::Tensor& x, Ranks& ranks);

/// What comes of the whole that GatherFromRanks gives.
enum class Then {
  /// The same on all ranks: backward takes this rank's part of the gradient.
  kSame,
  /// On each rank a part of the work: backward sums over ranks, and takes this rank's part.
  kWork,
};
/// All ranks' parts, one after the other, along a dimension; `whole` is the sum of their lengths.
at::Tensor GatherFromRanks(const at::Tensor& part, std::int64_t dimension, std::int64_t whole,
                           Then then, Ranks& ranks);
/// This rank's part of the sum over ranks; backward gathers.
at::Tensor SumToParts(const at::Tensor& whole, std::int64_t dimension, Ranks& ranks);
/// This rank's part of what is the same on all; backward gathers.
at::Tensor TakePart(const at::Tensor& whole, std::int64_t dimension, Ranks& ranks);

/// What is the same on all ranks outside of the layers that are split.
enum class Outside {
  /// All of it: each rank does the same.
  kWhole,
  /// Nothing: each rank has its part of the sequence, the dimension before the last.
  kSequence,
};

/// Of a sequence of `positions`, which must be a multiple of the number of ranks.
void CheckSequence(std::int64_t positions, const Ranks& ranks);

/// What is outside enters a layer that is split: all of it, of which each rank does a part.
at::Tensor EnterSplit(const at::Tensor& x, Outside outside, Ranks& ranks);
/// The sum of what each rank has made leaves it.
at::Tensor LeaveSplit(const at::Tensor& x, Outside outside, Ranks& ranks);

}  // namespace plimsoll::train

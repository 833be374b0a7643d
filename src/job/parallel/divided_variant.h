// A variant as one of several ranks runs it that divide its tensors: what is divided is followed
// from operator to operator, through forward, backward and optimizer, and where ranks have to
// exchange it there are collectives, with the buffers that PyTorch's DTensor makes for them.
#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "base/result.h"
#include "job/file/job.h"
#include "job/parallel/cut.h"
#include "job/parallel/placement.h"

namespace plimsoll {

/// What is divided at first; all else follows.
struct Division {
  std::int64_t ranks = 2;
  /// How far neighbours are apart in the order of all ranks.
  std::int64_t apart = 1;
  /// Weights, by storage.
  std::map<Storage, Cut> weights = {};
  /// Those of them whose result is gathered at once: a head whose loss wants all logits.
  std::set<Storage> gathered = {};
  /// Between the layers that are divided each rank has its positions of the sequence, of so many
  /// (SequenceParallel). 0: all.
  std::int64_t positions = 0;
  /// Inputs are divided by positions, of which each sample has so many (context parallelism): what
  /// is made of them is, too, and attention goes around the ranks. 0: they are not.
  std::int64_t context = 0;
  bool hands_on = false;
  /// A gradient that is whole is divided by who comes after (FSDP), and not by the optimizer.
  bool shards_follow = false;
};

/// Adds to the job's strings and layouts.
Result<Variant> Divide(Job& job, const Variant& variant, const Division& division);

}  // namespace plimsoll

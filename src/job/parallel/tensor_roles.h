// Which weights of a model tensor parallelism divides, and how: found by what becomes of their
// results, not by their names.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "base/result.h"
#include "job/file/job.h"
#include "job/parallel/cut.h"

namespace plimsoll {

struct TensorRoles {
  /// Pairs of layers: the first by its outputs, the second, whose input is made of them without
  /// anything else of the model, by its inputs. Attention is between such a pair as what works
  /// element by element is. The embedding of tokens and the head by words.
  std::map<Storage, Cut> weights;
  /// The head, where its result goes into a loss.
  std::set<Storage> heads;
  /// Positions of a sample; 0 where no embedding tells.
  std::int64_t positions = 0;
  /// How many weights are divided by outputs, by inputs and by words.
  int by_outputs = 0;
  int by_inputs = 0;
  int by_words = 0;
};

/// An error where the model has none, or they cannot be divided among so many.
Result<TensorRoles> FindTensorRoles(const Job& job, const Variant& variant, std::int64_t ranks);

/// Positions of a sample, as the embedding of tokens has them; 0 where there is none.
std::int64_t PositionsOf(const Job& job, const Variant& variant);

}  // namespace plimsoll

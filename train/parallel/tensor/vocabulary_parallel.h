// A vocabulary that is split among ranks: each has some rows of the table of tokens, and makes the
// logits of those alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "train/models/cross_entropy.h"
#include "train/parallel/ranks/collectives.h"
#include "train/parallel/ranks/ranks.h"

namespace plimsoll::train {

/// Rows of a table of `all` rows by their numbers; `part` are those of this rank.
at::Tensor LookUp(const at::Tensor& numbers, const at::Tensor& part, std::int64_t all,
                  Outside outside, Ranks& ranks);

/// For LinearCrossEntropy with a weight of `all` classes, of which each rank has its PartOf. The
/// ranks must outlive it.
std::shared_ptr<const SplitVocabulary> VocabularyOver(Ranks& ranks, std::int64_t all,
                                                      Outside outside = Outside::kWhole);

}  // namespace plimsoll::train

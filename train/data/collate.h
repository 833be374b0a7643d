// Samples, one by one, to a batch.
#pragma once

#include <c10/core/TensorOptions.h>

#include <vector>

#include "train/data/batch.h"

namespace plimsoll::train {

/// The tensors of one sample, without the dimension that a batch has more.
using Sample = std::vector<at::Tensor>;

/// One row a sample. Where sizes differ, each tensor is padded at the end of its dimensions to the
/// largest there is, with the value for it in `padding` (its last value for those that have none; 0
/// if it is empty). Tensors are made in `where`, host memory. Throws DataError if the samples have
/// different numbers of tensors, dimensions or types.
Batch Collate(const std::vector<Sample>& samples, const std::vector<double>& padding,
              const at::TensorOptions& where);

}  // namespace plimsoll::train

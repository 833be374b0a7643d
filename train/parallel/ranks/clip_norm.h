// Clipping by the norm of all gradients, where ranks have parts of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "train/parallel/ranks/ranks.h"

namespace plimsoll::train {

/// Parameters, and the ranks over which their gradients are split: each has another part. Not those
/// ranks that have the same gradients, which would be counted again.
struct NormPart {
  std::vector<at::Tensor> parameters;
  std::vector<Ranks*> over;
};

/// Scales all gradients down to a norm, over all ranks, of at most `most`; returns what it was. All
/// of the ranks call it alike.
double ClipNorm(const std::vector<NormPart>& parts, double most);

}  // namespace plimsoll::train

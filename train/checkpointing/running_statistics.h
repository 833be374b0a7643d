// Running statistics of normalization count each forward once, also where it is computed again.
#pragma once

#include <torch/nn/module.h>

#include <memory>

#include "train/checkpointing/checkpoint.h"

namespace plimsoll::train {

/// For RecomputeScope: in a recomputation, batch and instance normalization of the model leave
/// their running mean and variance, and their count of batches, as they are.
std::shared_ptr<RecomputeWatcher> KeepRunningStatistics(torch::nn::Module& model);

}  // namespace plimsoll::train

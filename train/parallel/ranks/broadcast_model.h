// How ranks begin with the same model.
#pragma once

#include <torch/nn/module.h>

#include "train/parallel/ranks/ranks.h"

namespace plimsoll::train {

/// All ranks get the parameters and buffers of rank 0. An error if the models differ; alone
/// nothing.
void BroadcastModel(const torch::nn::Module& model, Ranks& ranks);

}  // namespace plimsoll::train

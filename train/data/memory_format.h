// Images with their channels last in memory, which tensor cores want: convolutions in bf16 and fp16
// are much faster so.
#pragma once

#include <torch/nn/module.h>

#include "train/data/batch.h"

namespace plimsoll::train {

/// Brings every weight of four dimensions into that order. Before the optimizer has a state: the
/// 8-bit one keeps to the order it began with.
void UseChannelsLast(torch::nn::Module& model);

/// The same batch; tensors of four dimensions in that order.
Batch InChannelsLast(const Batch& batch);

}  // namespace plimsoll::train

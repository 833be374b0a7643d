// Pruning of channels: output channels of a layer are taken out, and with them the input channels
// of the layer that reads them. The tensors become smaller, and so does all that is made of them:
// gradients, optimizer state, what forward saves.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <string>
#include <vector>

#include "train/light/report.h"

namespace plimsoll::train {

struct ChannelOptions {
  /// Of each layer's output channels, the share with the smallest weights (their L1 norm, the
  /// earlier ones of equals) that is taken out.
  double fraction = 0.5;
  /// The channels that stay are rounded up to a multiple of this; GPUs like 8. At least one stays.
  std::int64_t multiple = 1;
  /// Layers by the names of the Sequential's elements; * stands for any characters.
  std::vector<std::string> layers = {"*"};
};

/// Prunes the nn::Conv2d and nn::Linear layers of a chain in place, each whose consumer is known:
/// the next nn::Conv2d (of one group) or nn::Linear of the same Sequential, with nothing between
/// but batch normalization (which loses the same channels) and modules that treat each channel by
/// itself: activations, dropout, pooling over the image, and Flatten from dimension 1 on. Others
/// stay, and the report says why; so does the last one, whose output is the chain's.
///
/// The Sequential must be called as a whole. The parameters stay the same objects with other sizes,
/// so the optimizer is made afterwards; where something else holds one, the layer stays. Gradients
/// are dropped. What a consumer loses is in the figures of the chain, not in those of the layer.
/// Throws c10::Error where no layer has such a name.
LightReport PruneChannels(torch::nn::SequentialImpl& chain, const ChannelOptions& options = {});

}  // namespace plimsoll::train

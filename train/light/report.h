// What a model takes while it trains, and what was changed to make it lighter.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace plimsoll::train {

/// By the sizes of tensors; what forward saves for backward is not in it. A tensor that is there
/// under two names counts once.
struct Footprint {
  /// Elements of all parameters, and of those that are trained (requires_grad).
  std::int64_t parameters = 0;
  std::int64_t trained = 0;
  /// Of parameters and buffers.
  Bytes weights = 0;
  /// One for each trained parameter, of its type.
  Bytes gradients = 0;
  /// As many tensors of a trained parameter's size and type as the optimizer keeps for it.
  Bytes optimizer_state = 0;

  Bytes bytes() const { return weights + gradients + optimizer_state; }
  bool operator==(const Footprint&) const = default;
};

/// Adam and AdamW keep two tensors for each parameter, SGD with momentum one, without none.
inline constexpr int kStatesOfAdam = 2;

Footprint FootprintOf(const torch::nn::Module& module, int states_per_parameter = kStatesOfAdam);

struct LightReport {
  struct Change {
    /// As in named_modules().
    std::string layer;
    /// "separable convolution", "adapter of rank 8"...
    std::string to;
    Footprint before;
    Footprint after;
  };
  struct Skip {
    std::string layer;
    /// A sentence without its subject: "has groups".
    std::string reason;
  };

  std::vector<Change> changed;
  /// Layers of the kind that could be changed, and were not.
  std::vector<Skip> skipped;
  /// Of the whole model.
  Footprint before;
  Footprint after;

  /// A line for each layer and one for the model.
  std::string ToString() const;
};

}  // namespace plimsoll::train

// How a model is sharded.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

#include "base/bytes.h"
#include "train/parallel/sharded/flat_group.h"

namespace plimsoll::train {

struct ShardedOptions {
  Shard shard = Shard::kGradients;
  /// Parameters are of this type (bf16) for the model, gathered and in memory, while the parts that
  /// the optimizer steps keep the type that the model has (fp32). What else goes into the model is
  /// the caller's: its inputs, if it does not cast them. None: one type for all.
  std::optional<at::ScalarType> compute_dtype;
  /// Gradients travel as bf16, half the bytes, and are summed over ranks in it. Else both in the
  /// type of the parts, whatever type they are computed in. They are added to the parts' gradients,
  /// which have the parts' type, either way.
  bool send_bf16 = false;
  /// Parts, their gradients, and so the optimizer's state and its work, are on the host: what is
  /// gathered is copied to the device, and each sum back.
  bool offload = false;
  /// Parameters are gathered, and their gradients sent, in groups of about this size, of one block.
  Bytes group = 25 * kMiB;
  /// The parameters of the next block come while one is computed, and take their place meanwhile.
  bool ahead = true;
  /// Parameters for which it differs share no part, so that they may have options of their own in
  /// the optimizer, as those without weight decay. Null: all are of kind 0.
  std::function<int(const at::Tensor&)> kind;
};

}  // namespace plimsoll::train

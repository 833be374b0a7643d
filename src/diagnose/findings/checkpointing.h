// Which blocks of a model are worth computing again in backward instead of keeping what they made.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "diagnose/findings/findings.h"

namespace plimsoll {

/// Blocks that lines of the program call again and again: the layers of a transformer, the parts of
/// a stage.
struct CheckpointPlan {
  /// The line that calls those which hold most: "modeling_gpt2.py:608 in forward".
  std::string line;
  /// It is the user's own, not a library's: it can be edited.
  bool own_line = false;
  /// The line calls a module of PyTorch's (nn.Sequential) that calls the blocks.
  bool inside_module = false;
  /// Other lines call others.
  bool others = false;
  /// What they hold, less an input for each and less one that is computed again.
  Bytes saves = 0;
};

/// Of `activations`, held at the instant. Nothing where no block is there three times.
std::optional<CheckpointPlan> PlanCheckpointing(const Phases& phases,
                                                const std::vector<AllocationIndex>& activations);

Remedy CheckpointingRemedy(const CheckpointPlan& plan);

}  // namespace plimsoll

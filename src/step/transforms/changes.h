// What is to be different from the job as it was captured, and the one place that says in which
// order it is done.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "step/file/step.h"
#include "step/transforms/fully_sharded.h"

namespace plimsoll {

struct Changes {
  /// As ParseCheckpointing reads them.
  std::optional<std::string> checkpoint = {};
  /// Passes of forward and backward before each step of the optimizer.
  int accumulate = 1;
  /// Matrix products of fp32 on tensor cores; as captured unless given.
  std::optional<bool> tf32 = {};
  /// As ReplaceOptimizer knows them.
  std::optional<std::string> optimizer = {};
  /// As one rank of DistributedDataParallel.
  bool data_parallel = false;
  /// As one rank of FSDP2.
  std::optional<Sharding> sharding = {};

  bool Any() const {
    return checkpoint || accumulate > 1 || tf32 || optimizer || data_parallel || sharding;
  }
};

/// Every precision of the step, changed; what is assumed goes to its notes.
std::optional<Error> Apply(Step& step, const Changes& changes);

}  // namespace plimsoll

// What checkpointing each block of a model would change in memory and time: cheap figures, by which
// sets of blocks are put in order before any of them is tried.
#pragma once

#include <string>
#include <vector>

#include "base/bytes.h"

namespace plimsoll {

/// More or fewer bytes alive, in a half-open interval of moments.
struct MemoryChange {
  std::size_t begin = 0;
  std::size_t end = 0;
  Bytes bytes = 0;
};

struct CheckpointBlock {
  std::string module;
  /// What computing it again takes.
  double us = 0;
  std::vector<MemoryChange> changes;
  /// Blocks that cannot be checkpointed beside it, being part of it or it of them.
  std::vector<std::size_t> conflicts = {};
};

/// Blocks are independent of each other here, which is nearly so: what they change adds up.
struct CheckpointModel {
  /// What is alive at each moment of a step without checkpointing.
  std::vector<Bytes> plain;
  /// In the order of the forward; some are part of others.
  std::vector<CheckpointBlock> blocks;
};

}  // namespace plimsoll

// What checkpointing each module of a step would change in memory and time, from the step alone:
// cheap figures, by which sets of modules are put in order before any of them is replayed.
#pragma once

#include <string>
#include <vector>

#include "base/bytes.h"
#include "step/lowering/lower.h"

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
};

/// Modules are independent of each other here, which is nearly so: what they change adds up.
struct CheckpointModel {
  /// What is alive at each moment of a step without checkpointing.
  std::vector<Bytes> plain;
  /// In the order of the forward; some are part of others.
  std::vector<CheckpointBlock> blocks;
};

/// Of the last captured step, which is what every later one does; the options' steps are not used.
CheckpointModel ModelCheckpointing(const Step& step, const Variant& variant, const Gpu& gpu,
                                   const LowerOptions& options);

}  // namespace plimsoll

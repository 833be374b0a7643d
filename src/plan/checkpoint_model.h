// What checkpointing each module of a captured step would change, from the step alone.
#pragma once

#include <string>
#include <vector>

#include "job/lowering/lower.h"
#include "recompute/checkpoint_model.h"

namespace plimsoll {

/// What may be checkpointed, and how.
struct CheckpointScope {
  /// These modules, and those around them, are left as they are.
  std::vector<std::string> apart = {};
  /// Blocks also in such a way that what some of their calls made is kept: for each block few ways,
  /// from what takes the longest for its bytes on. A block's name then says what is kept, as
  /// ParseCheckpointing has it.
  bool selective = false;
};

/// Of the last captured step, which is what every later one does; the options' steps are not used.
CheckpointModel ModelCheckpointing(const Job& job, const Variant& variant, const Gpu& gpu,
                                   const LowerOptions& options, const CheckpointScope& scope = {});

}  // namespace plimsoll

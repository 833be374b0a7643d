// What checkpointing each module of a captured step would change, from the step alone.
#pragma once

#include <string>
#include <vector>

#include "job/lowering/lower.h"
#include "recompute/checkpoint_model.h"

namespace plimsoll {

/// Of the last captured step, which is what every later one does; the options' steps are not used.
/// Modules of `apart`, and those around them, are left as they are.
CheckpointModel ModelCheckpointing(const Job& job, const Variant& variant, const Gpu& gpu,
                                   const LowerOptions& options,
                                   const std::vector<std::string>& apart = {});

}  // namespace plimsoll

// What checkpointing each module of a captured step would change, from the step alone.
#pragma once

#include <string>
#include <vector>

#include "recompute/checkpoint_model.h"
#include "step/lowering/lower.h"

namespace plimsoll {

/// Of the last captured step, which is what every later one does; the options' steps are not used.
/// Modules of `apart`, and those around them, are left as they are.
CheckpointModel ModelCheckpointing(const Step& step, const Variant& variant, const Gpu& gpu,
                                   const LowerOptions& options,
                                   const std::vector<std::string>& apart = {});

}  // namespace plimsoll

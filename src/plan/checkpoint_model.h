// What checkpointing each module of a captured step would change, from the step alone.
#pragma once

#include "recompute/checkpoint_model.h"
#include "step/lowering/lower.h"

namespace plimsoll {

/// Of the last captured step, which is what every later one does; the options' steps are not used.
CheckpointModel ModelCheckpointing(const Step& step, const Variant& variant, const Gpu& gpu,
                                   const LowerOptions& options);

}  // namespace plimsoll

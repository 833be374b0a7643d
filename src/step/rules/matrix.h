// What matrix products keep for good.
#pragma once

#include "step/rules/emitter.h"

namespace plimsoll {

/// PyTorch gives cuBLAS a workspace for each thread and stream, at its first product and right
/// after that one's output, and never takes it back. All 23 jobs of shared/data/align show it; none
/// without a product has one.
void KeepCublasWorkspace(int thread, Emitter& emit);

}  // namespace plimsoll

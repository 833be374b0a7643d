// What matrix products keep for good.
#pragma once

#include "job/calls/emitter.h"

namespace plimsoll {

/// PyTorch gives cuBLAS a workspace for each thread and stream, at its first product and right
/// after that one's output, and never takes it back. Every recorded job with a product shows it
/// (docs/prediction.md, "Matrix products"); none without one has it.
void KeepCublasWorkspace(int thread, Emitter& emit);
/// Of a product with a bias of one dimension: that of cuBLASLt, too.
void KeepWorkspacesOfLinear(int thread, Emitter& emit);

}  // namespace plimsoll

// The last linear layer and its cross-entropy in chunks of rows, as plimsoll.chunked_cross_entropy
// (python/plimsoll/applying/chunked_loss.py) does it: the gradients of a chunk are computed as soon
// as its logits are there, so that nothing of rows by classes outlives its chunk.
#pragma once

#include "base/result.h"
#include "step/file/step.h"

namespace plimsoll {

/// What chunked_cross_entropy takes if nothing is said.
inline constexpr int kDefaultChunks = 8;
inline constexpr int kMostChunks = 1024;

/// Adds to the step's strings and layouts.
Result<Variant> ChunkLoss(Step& step, const Variant& variant, int chunks);

/// Bytes of the logits at the first captured batch size; 0 where ChunkLoss has an error.
Bytes LogitsOf(const Step& step, const Variant& variant, int chunks);

}  // namespace plimsoll

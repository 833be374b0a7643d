// The last linear layer and its cross-entropy in chunks of rows, as plimsoll.chunked_cross_entropy
// (python/plimsoll/applying/chunked_loss.py) does it: the gradients of a chunk are computed as soon
// as its logits are there, so that nothing of rows by classes outlives its chunk.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "job/file/job.h"

namespace plimsoll {

/// What chunked_cross_entropy takes if nothing is said.
inline constexpr int kDefaultChunks = 8;
inline constexpr int kMostChunks = 1024;

/// Adds to the step's strings and layouts.
Result<Variant> ChunkLoss(Job& job, const Variant& variant, int chunks);

/// The layers that make logits, which plimsoll.apply replaces: they cannot be checkpointed too.
/// None where ChunkLoss has an error, or the capture names no module.
std::vector<std::string> LogitLayers(const Job& job, const Variant& variant, int chunks);

/// Why logits of at least so many bytes at the first captured batch size cannot go in chunks.
/// Nothing where there are none.
std::optional<std::string> WhyNotChunked(const Job& job, const Variant& variant, int chunks,
                                         Bytes least);

/// Bytes of the logits at the first captured batch size; 0 where ChunkLoss has an error.
Bytes LogitsOf(const Job& job, const Variant& variant, int chunks);

}  // namespace plimsoll

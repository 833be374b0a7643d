// Activation checkpointing of chosen blocks, as torch.utils.checkpoint does it without reentrance:
// what a block saves for its backward is dropped at its end, and made again when its backward
// begins.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "step/file/step.h"

namespace plimsoll {

/// The modules that can be checkpointed, in the order in which the forward runs them: members of
/// numbered lists ("transformer.h.3").
std::vector<std::string> CheckpointBlocks(const Step& step, const Variant& variant);

/// Blocks that are computed again together: only what goes into the first of each is kept.
using CheckpointSegments = std::vector<std::vector<std::string>>;

/// "all" (each block by itself), "every:2" (the first of each two), "sqrt" (about as many segments
/// as each has blocks), or names of blocks with commas between them.
Result<CheckpointSegments> ParseCheckpointing(std::string_view text,
                                              const std::vector<std::string>& blocks);

/// The variant with these checkpointed; blocks that it does not have are passed over. Adds to the
/// step's strings.
Variant AddCheckpointing(Step& step, const Variant& variant, const CheckpointSegments& segments);

}  // namespace plimsoll

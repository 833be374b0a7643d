// The same job with another evaluation: without a graph, with its outputs on the host, in smaller
// batches. What a job keeps of each batch is what lives until the next but one has run.
#pragma once

#include <cstdint>

#include "job/file/job.h"

namespace plimsoll {

/// Whether it keeps what a backward would need, though none comes.
bool EvaluationHasGraph(const Variant& variant);
/// As under torch.no_grad(): what a module makes for another goes when that has used it. The last
/// of a batch is what the model gives, and stays as long as it did.
Variant EvaluateWithoutGraph(const Variant& variant);

/// Whether it keeps something of each batch on the device that no graph keeps: that stays there,
/// whatever becomes of the outputs.
bool EvaluationKeepsOutputs(const Variant& variant);
/// What it keeps goes to the host after each batch, and so does what is computed of it alone.
Variant KeepOutputsOnHost(const Variant& variant);

/// Whether its batch is of the script's batch size.
bool EvaluationFollowsBatch(const Job& job, const Variant& variant);
/// In batches of all micro-batches together, as where a loader's batch is cut for training alone.
Variant EvaluateWholeBatches(const Variant& variant);
/// In batches of an nth.
Variant EvaluateInShares(const Variant& variant, int shares);

}  // namespace plimsoll

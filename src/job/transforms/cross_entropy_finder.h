// Follows one log_softmax to both sides: to a linear layer, and to a cross-entropy.
#pragma once

#include <optional>

#include "job/transforms/call_uses.h"
#include "job/transforms/linear_loss.h"

namespace plimsoll {

/// Nothing where it is no cross-entropy at all (a head of attention).
std::optional<Result<LinearLoss>> FindCrossEntropy(const CallUses& uses, std::size_t log_softmax);

/// What is said of a loss that cannot be computed in chunks.
Error NotInChunks(std::string_view why);

}  // namespace plimsoll

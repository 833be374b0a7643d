// Another number of micro-batches in a step that accumulates gradients already.
#pragma once

#include <optional>

#include "base/result.h"
#include "job/file/job.h"
#include "job/transforms/accumulate.h"

namespace plimsoll {

/// Why the micro-batches of each step cannot be taken out or repeated; nothing where they can.
/// Requires PassesOf(variant) > 1.
std::optional<Error> CannotResplit(const Job& job, const Variant& variant);

/// The variant with `micro_batches` forward and backward passes in each step: the later ones are
/// left out, or the last one is repeated. Of a long step only the first are written out, as
/// AddAccumulation does. Requires !CannotResplit.
Variant Resplit(Job& job, const Variant& variant, int micro_batches,
                std::size_t most_events = kMostEventsWritten);

}  // namespace plimsoll

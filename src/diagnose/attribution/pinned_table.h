// Page-locked memory of the host: how much, at most, and whose.
#pragma once

#include "answer/explanation.h"
#include "diagnose/phases/stack_traits.h"
#include "timeline/timeline.h"

namespace plimsoll {

/// None where the record has no history of it.
std::optional<HostPinnedReport> PinnedTable(const Timeline& timeline, const StackAnalysis& stacks);

/// A piece in use when the record was made, and what was asked for when it was handed out.
struct PinnedUse {
  Bytes size = 0;
  Bytes requested = 0;
  StackId stack;
};
std::vector<PinnedUse> PinnedInUse(const PinnedMemory& pinned);

}  // namespace plimsoll

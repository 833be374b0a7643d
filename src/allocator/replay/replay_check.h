// An independent check of a replay. It knows nothing of pools, streams or settings and shares no
// code with the model: blocks must lie inside memory that is held, must not overlap, and the sums
// must come to what the model says.
#pragma once

#include <optional>
#include <string>

#include "allocator/replay/replay.h"

namespace plimsoll {

/// The first thing that is wrong with a replay, in words; nothing if all is well.
std::optional<std::string> CheckReplay(const ReplayLog& log, const AllocatorCounters& counters);

}  // namespace plimsoll

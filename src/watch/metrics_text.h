// What `plimsoll watch --prometheus` of another machine tells, read back.
#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"
#include "watch/sample.h"

namespace plimsoll {

/// Text of the exposition format: lines of ours become GPUs with their processes, by number; those
/// of others, and figures that no machine has, are passed over. Trends are not taken: whoever
/// watches follows them by the samples that it gets.
Result<std::vector<WatchedGpu>> ReadMetrics(std::string_view text);

}  // namespace plimsoll

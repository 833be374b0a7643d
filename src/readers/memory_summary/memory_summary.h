// The tables that torch.cuda.memory_summary() prints, alone or inside a log.
#pragma once

#include <string_view>
#include <vector>

#include "base/input.h"
#include "base/result.h"
#include "timeline/recording.h"

namespace plimsoll {

bool RecogniseMemorySummary(std::string_view bytes);

/// The tables, and the out-of-memory messages of the same text.
Result<Recording> ReadMemorySummary(const Input& input);

/// Every table in the text, in its order.
std::vector<MemorySummary> ReadSummaries(std::string_view text);

}  // namespace plimsoll

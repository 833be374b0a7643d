#pragma once

#include <string_view>

#include "base/result.h"
#include "files/input.h"
#include "timeline/recording.h"

namespace plimsoll {

/// Chrome traces with [memory] and [OutOfMemory] events.
bool RecogniseChromeTrace(std::string_view bytes);
Result<Recording> ReadChromeTrace(const Input& input);

/// export_memory_timeline: the .json and the .raw.json form.
bool RecogniseMemoryTimeline(std::string_view bytes);
Result<Recording> ReadMemoryTimeline(const Input& input);

}  // namespace plimsoll

#include "readers/profiler/profiler.h"

namespace plimsoll {

bool RecogniseChromeTrace(std::string_view) { return false; }
Result<Recording> ReadChromeTrace(const Input&) { return Error{.message = "not read yet"}; }
bool RecogniseMemoryTimeline(std::string_view) { return false; }
Result<Recording> ReadMemoryTimeline(const Input&) { return Error{.message = "not read yet"}; }

}  // namespace plimsoll

// What the lines near a message show of the program, the machine and the work.
#pragma once

#include <string_view>

#include "timeline/message.h"

namespace plimsoll {

/// Adds what the lines show; what is known already stays.
void ReadSigns(std::string_view lines, OomMessage& message);

/// What a frame of a traceback says about what was being done.
Activity ActivityOf(std::string_view file, std::string_view function);
/// Of the activities of two frames, the one that tells more: an evaluation calls a forward.
Activity MoreTelling(Activity a, Activity b);

}  // namespace plimsoll

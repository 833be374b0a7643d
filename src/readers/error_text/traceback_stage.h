// What the job was doing, by the frames of a traceback.
#pragma once

#include <string>
#include <vector>

#include "readers/error_text/surroundings.h"
#include "timeline/message.h"

namespace plimsoll {

/// A frame with the line of source that stands below it.
struct TracedFrame {
  TextFrame frame;
  std::string source;
  /// The lines above the marked one, as notebooks print them.
  std::string context = {};
};

/// Whether the file is the user's: not Python's own, not installed, not PyTorch.
bool IsUserCode(std::string_view file);

/// Adds to the message what its frames, the innermost first, show.
void ReadStage(const std::vector<TracedFrame>& frames, OomMessage& message);

}  // namespace plimsoll

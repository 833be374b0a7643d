// What the lines below a message tell: whether the program caught the error and went on.
#pragma once

#include <cstddef>
#include <string_view>

#include "timeline/message.h"

namespace plimsoll {

/// Whether the log shows that the message, from `begin` to `end`, did not end the run: it says so
/// itself ("skipping batch"), or steps follow.
bool WentOn(std::string_view text, std::size_t begin, std::size_t end, const OomMessage& message);

}  // namespace plimsoll

// What the lines around a message tell about it: the rank, the device, the line of the user's
// program that asked for the memory, and what the job was doing.
#pragma once

#include <optional>
#include <string_view>

#include "readers/error_text/surroundings.h"
#include "timeline/message.h"

namespace plimsoll {

/// The rank that the prefix of the message's own line names.
std::optional<int> RankOfLine(std::string_view text, std::size_t offset);

/// Where a message stands in a part of the log. `floor` is where the message before it ended:
/// nothing above that is this one's.
struct MessagePlace {
  std::size_t floor = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// Fills `where` and `stage`, and `rank` and `device` where the message itself did not say. Looks
/// back at most 32 KiB, and a few lines ahead.
void ReadContext(const LogPart& part, const MessagePlace& place, Surroundings& surroundings,
                 OomMessage& message);

}  // namespace plimsoll

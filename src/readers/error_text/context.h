// What the lines around a message tell about it: the rank, the device, the line of the user's
// program that asked for the memory.
#pragma once

#include <string_view>

#include "timeline/message.h"

namespace plimsoll {

/// The rank that the prefix of the message's own line names.
std::optional<int> RankOfLine(std::string_view text, std::size_t offset);

/// Fills `where`, and `rank` and `device` where the message itself did not say. Looks back at most
/// as far as `floor` (where the message before ended) and 32 KiB, and a few lines ahead of `end`.
void ReadContext(std::string_view text, std::size_t floor, std::size_t begin, std::size_t end,
                 OomMessage& message);

}  // namespace plimsoll

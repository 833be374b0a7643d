// What the lines near a message show of the program, the machine and the job.
#pragma once

#include <bitset>
#include <string_view>

#include "timeline/message.h"

namespace plimsoll {

/// Which of the words that tell something stand in a line.
using SignSet = std::bitset<128>;
SignSet SignsOf(std::string_view line);

/// Adds what the lines show together; what is known already stays.
void ApplySigns(const SignSet& signs, OomMessage& message);

}  // namespace plimsoll

// Pages for man(1), made from what the commands declare.
#pragma once

#include <string>
#include <vector>

#include "cli/command/flags.h"

namespace plimsoll {

/// plimsoll(1): every command, and under SEE ALSO the name of its page.
std::string ManualOverview(const std::vector<CommandInfo>& commands, const std::string& version);
/// plimsoll-explain(1) and the like.
std::string ManualOf(const CommandInfo& command, const std::string& version);

}  // namespace plimsoll

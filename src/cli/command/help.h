// What `plimsoll help` and `--help` print.
#pragma once

#include <string>
#include <vector>

#include "cli/command/flags.h"
#include "report/text.h"

namespace plimsoll {

/// `help` and `completion`, which read no file.
std::vector<CommandInfo> CommandsOfTheProgram();

/// All commands, with an example of each.
std::string Overview(const std::vector<CommandInfo>& commands, const TextStyle& style);
/// One command: its arguments, flags and examples.
std::string HelpOf(const CommandInfo& command, const TextStyle& style);

}  // namespace plimsoll

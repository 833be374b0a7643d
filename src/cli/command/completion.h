// Scripts that let a shell complete commands and flags.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "cli/command/flags.h"

namespace plimsoll {

/// For "bash", "zsh" or "fish".
Result<std::string> CompletionScript(const std::string& shell,
                                     const std::vector<CommandInfo>& commands);

}  // namespace plimsoll

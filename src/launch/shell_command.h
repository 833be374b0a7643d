// A shell's command behind `--run`: scripts are followed in Python, which a shell would start.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace plimsoll {

/// The last command in a shell script that starts Python, torchrun, accelerate or deepspeed,
/// without redirections; empty if there is none.
std::string PythonCommandIn(std::string_view script);

/// Says that a shell script cannot be followed, and which command in it can; nothing for other
/// commands.
std::optional<Error> RefuseShell(const std::vector<std::string>& command);

}  // namespace plimsoll

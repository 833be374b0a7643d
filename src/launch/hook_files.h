// The files of the hook, which are part of the program.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"

namespace plimsoll {

/// What each Python process of a job needs to record itself, and the Python package.
std::optional<Error> WriteHookFiles(const std::string& folder);

enum class HookAction { kInstall, kStatus, kRemove };

/// Puts the hook into the environment of a Python, looks for it there, or takes it out. Python says
/// what came of it; the exit code of that, or why it never began.
Result<int> RunHookInstaller(HookAction action, const std::string& python);

}  // namespace plimsoll

// What the commands share of the terminal: errors, colour, width.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "cli/progress.h"
#include "report/text.h"

namespace plimsoll {

/// Prints one line to standard error and returns the exit code of unusable input.
int Complain(const Error& error);

/// Colour and width as each takes them (NO_COLOR and COLUMNS are heeded).
TextStyle StyleOfStdout();
TextStyle StyleOfStderr();

/// Writes to standard output; the exit code says whether that worked.
[[nodiscard]] int Print(std::string_view text);

/// Writes a file whole or not at all, "-" to standard output; the exit code says whether that
/// worked.
[[nodiscard]] int WriteOut(const std::string& path, std::string_view text);

}  // namespace plimsoll

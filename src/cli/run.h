// The whole command line: which command, its help, or what is wrong.
#pragma once

#include <string>
#include <vector>

namespace plimsoll {

/// Runs `plimsoll WORDS...` and gives the exit code.
int Run(const std::vector<std::string>& words, const std::string& version);
/// What Run was told.
const std::string& ProgramVersion();

}  // namespace plimsoll

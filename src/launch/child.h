// A command run as if it had been typed: same terminal, same process group, signals passed on.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace plimsoll {

struct Variable {
  std::string name;
  std::string value;
};

/// How a command ended.
struct ChildEnd {
  /// Its exit code; as a shell has it where there is none: 128 and the signal's number, 127 where
  /// the command was not found, 126 where it could not be run.
  int code = 0;
  std::optional<int> signal = {};
  /// Why it never began.
  std::optional<Error> refused = {};
};

/// What becomes of the command if this process is to end.
enum class Bond : std::uint8_t {
  kFree,  // the command gets the same signal; if this process is killed, it goes on
  kTied,  // the command gets SIGINT, also (on Linux) if this process is killed; then SIGKILL
};

/// Runs the command with these variables set besides those of this process, and waits for it.
/// Meanwhile SIGTERM, SIGHUP, SIGINT, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to it as the bond
/// says, but for those that the terminal sends to both. `started` is called with its number once it
/// runs.
ChildEnd RunChild(const std::vector<std::string>& command, const std::vector<Variable>& more,
                  Bond bond = Bond::kFree, const std::function<void(std::int64_t)>& started = {});

}  // namespace plimsoll

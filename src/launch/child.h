// A command run as if it had been typed: same terminal, same process group, signals passed on.
#pragma once

#include <signal.h>

#include <array>
#include <cstddef>
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

/// While it lives, SIGINT, SIGTERM and SIGHUP do not end this process: they are noted, so that what
/// was made can be taken away. What a tied command is ended by is noted as well.
class EndWatch {
 public:
  EndWatch();
  ~EndWatch();
  EndWatch(const EndWatch&) = delete;
  EndWatch& operator=(const EndWatch&) = delete;

  /// The signal that came first.
  static std::optional<int> Asked();

 private:
  static constexpr std::size_t kSignals = 3;
  std::array<struct sigaction, kSignals> before_{};
};

/// Runs the command with these variables set besides those of this process, and waits for it.
/// Meanwhile SIGTERM, SIGHUP, SIGINT, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to it as the bond
/// says, but for those that the terminal sends to both. `started` is called with its number once it
/// runs.
ChildEnd RunChild(const std::vector<std::string>& command, const std::vector<Variable>& more,
                  Bond bond = Bond::kFree, const std::function<void(std::int64_t)>& started = {});

}  // namespace plimsoll

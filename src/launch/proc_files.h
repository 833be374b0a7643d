// What Linux tells of a process in /proc, parsed: pure functions of the files' texts, and one that
// reads such a file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"

namespace plimsoll {

/// Where the kernel tells: elsewhere in tests.
struct HostPlaces {
  std::string proc = "/proc";
  std::string groups = "/sys/fs/cgroup";
  std::string shm = "/dev/shm";
};

/// The text of a file of the kernel's, which has no size; nothing where it cannot be read.
std::optional<std::string> ReadKernelFile(const std::string& path, std::size_t most = 16 * 1024);

/// Of /proc/PID/stat.
struct ProcStat {
  std::string name = {};
  char state = '?';
  std::int64_t parent = 0;
  std::int64_t started = 0;
  /// As wait() has it; only of one that is dead and not yet waited for.
  int status = 0;
};
std::optional<ProcStat> ParseStat(std::string_view text);

/// Of /proc/PID/status. A process that is dead has no figures, and holds nothing.
struct ProcStatus {
  std::string name = {};
  Bytes resident = 0;
  Bytes shared = 0;
};
ProcStatus ParseStatus(std::string_view text);

/// The figure behind "Pss:" and the like, in bytes.
std::optional<Bytes> KilobytesAfter(std::string_view text, std::string_view key);
/// The number behind a word at the beginning of a line: "oom_kill 3".
std::optional<std::int64_t> CountAfter(std::string_view text, std::string_view word);

/// The words of /proc/PID/cmdline or the variables of /proc/PID/environ.
std::vector<std::string_view> NulSeparated(std::string_view text);
/// As a launcher tells a process which rank it is; nothing outside of a distributed job.
std::optional<int> RankInEnvironment(std::string_view environment);
/// "python3 train.py": the program, and of Python the script or module. Other words can hold
/// passwords.
std::string ProgramIn(std::string_view words);

}  // namespace plimsoll

#include <fmt/format.h>

#include <string>

#include "launch/proc_files.h"
#include "watch/watcher.h"

namespace plimsoll {

std::string ProgramOf(std::int64_t pid) {
  return ProgramIn(ReadKernelFile(fmt::format("/proc/{}/cmdline", pid), 4096).value_or(""));
}

}  // namespace plimsoll

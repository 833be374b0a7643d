#include "answer/host.h"

#include <fmt/format.h>

#include <cmath>

namespace plimsoll {

std::string_view KillCertaintyName(KillCertainty certainty) {
  switch (certainty) {
    case KillCertainty::kCertain:
      return "certain";
    case KillCertainty::kLikely:
      return "likely";
    case KillCertainty::kUnlikely:
      break;
  }
  return "unlikely";
}

std::string_view HostLimitKindName(HostLimitKind kind) {
  return kind == HostLimitKind::kGroup ? "control group" : "machine";
}

std::string HostProcessText(const HostProcess& process) {
  std::string name;
  switch (process.role) {
    case HostRole::kMain:
      name = "the main process";
      break;
    case HostRole::kRank:
      return process.rank ? fmt::format("rank {} (pid {})", *process.rank, process.pid)
                          : fmt::format("a rank (pid {})", process.pid);
    case HostRole::kLoaderWorker:
      name = "loader worker";
      break;
    case HostRole::kWorker:
      name = "worker";
      break;
    case HostRole::kOther:
      return fmt::format("process {}", process.pid) +
             (process.command.empty() ? "" : fmt::format(" ({})", process.command));
  }
  if (process.number) name += fmt::format(" {}", *process.number);
  if (process.rank) {
    name += fmt::format("{} rank {}", process.role == HostRole::kMain ? "," : " of", *process.rank);
  }
  return name + fmt::format(" (pid {})", process.pid);
}

std::string HostTimeText(double time, int utc_offset) {
  const auto seconds = static_cast<std::int64_t>(std::floor(time)) + utc_offset;
  const std::int64_t of_day = (seconds % 86400 + 86400) % 86400;
  return fmt::format("{:02}:{:02}:{:02}", of_day / 3600, of_day / 60 % 60, of_day % 60);
}

}  // namespace plimsoll

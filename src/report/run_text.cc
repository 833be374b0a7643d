#include "report/run_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/printable.h"
#include "report/format/table.h"

namespace plimsoll {
namespace {

std::string FileNameOf(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

std::string Counted(std::int64_t count, std::string_view one, std::string_view more) {
  return fmt::format("{} {}", count, count == 1 ? one : more);
}

std::string HowItEnded(const RecordedProcess& process) {
  switch (process.end) {
    case ProcessEnd::kException:
    case ProcessEnd::kSignal:
      return process.detail;
    case ProcessEnd::kExit:
      return "exit";
    case ProcessEnd::kUnknown:
      break;
  }
  return IsAlive(process) ? "still runs" : "killed or crashed";
}

}  // namespace

std::string ProcessTable(const std::vector<RecordedProcess>& processes, const TextStyle& style) {
  Writer w(style);
  Table table({{.heading = "rank", .right = true},
               {.heading = "process", .right = true},
               {.heading = "ended by"},
               {.heading = "out of memory", .right = true},
               {.heading = "optimizer steps", .right = true, .may_go = true},
               {.heading = "size", .right = true, .may_go = true},
               {.heading = "snapshot", .wraps = true}});
  for (const RecordedProcess& process : processes) {
    const SnapshotFile* const main = process.Main();
    table.Row({process.rank ? fmt::format("{}", *process.rank) : "-",
               fmt::format("{}", process.pid), Printable(HowItEnded(process)),
               process.ooms == 0 ? "-" : Counted(process.ooms, "time", "times"),
               fmt::format("{}", process.optimizer_steps),
               main != nullptr ? FormatBytes(main->bytes) : "-",
               main != nullptr ? Printable(FileNameOf(main->path)) : "none"});
  }
  table.WriteTo(w);
  return w.Take();
}

std::vector<std::string> RecordingCost(const std::vector<RecordedProcess>& processes) {
  Bytes bytes = 0;
  std::int64_t files = 0;
  double longest = 0;
  for (const RecordedProcess& process : processes) {
    for (const SnapshotFile& file : process.snapshots) bytes += file.bytes;
    files += static_cast<std::int64_t>(process.snapshots.size());
    longest = std::max(longest, process.seconds);
  }
  std::vector<std::string> said = {
      fmt::format("{}, {} in all; writing took {:.2f} s{}", Counted(files, "snapshot", "snapshots"),
                  FormatBytes(bytes), longest,
                  processes.size() > 1 ? " in the process where it took longest" : "")};
  for (const RecordedProcess& process : processes) {
    const SnapshotFile* const main = process.Main();
    if (main == nullptr || !main->full) continue;
    said.push_back(fmt::format("{}: only the last {} events are in it; --max-entries keeps more",
                               FileNameOf(main->path), process.max_entries));
  }
  return said;
}

}  // namespace plimsoll

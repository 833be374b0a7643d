#include <fmt/format.h>

#include <cmath>
#include <ctime>

#include "base/printable.h"
#include "report/format/table.h"
#include "report/format/writer.h"
#include "report/watch.h"

namespace plimsoll {
namespace {

/// A rank that is this late waits in a call that holds Python's lock, or is stopped.
constexpr double kLate = 5;

/// "40 s", "25 min", "3 h 10 min": no finer than such a thing can be known.
std::string DurationText(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 100) return fmt::format("{} s", whole);
  const std::int64_t minutes = (whole + 30) / 60;
  if (minutes < 100) return fmt::format("{} min", minutes);
  return fmt::format("{} h {} min", minutes / 60, minutes % 60);
}

std::string TrendText(const Trend& trend) {
  switch (trend.kind) {
    case TrendKind::kUnknown:
      return "-";
    case TrendKind::kFlat:
      return "flat";
    case TrendKind::kUneven:
      return "uneven";
    case TrendKind::kRising:
    case TrendKind::kFalling:
      break;
  }
  const auto rate = static_cast<Bytes>(std::llround(std::abs(trend.bytes_per_second)));
  return fmt::format("{}{}/s", trend.bytes_per_second > 0 ? "+" : "-", FormatBytes(rate));
}

std::string OrDash(const std::optional<Bytes>& bytes) { return bytes ? FormatBytes(*bytes) : "-"; }

/// What is in use of all, as a bar.
std::string Bar(const DriverMemory& memory) {
  constexpr double kCells = 20;
  const double share = memory.total > 0 ? double(memory.used) / double(memory.total) : 0;
  const double cells = std::round(share * kCells);
  std::string bar;
  for (int i = 0; i < kCells; ++i) bar += i < cells ? "█" : "░";
  return fmt::format("{} {:.0f} %", bar, 100 * share);
}

/// "41.20 GiB of 139.80 GiB used, 98.01 GiB free, busy 97 %, +85.30 MiB/s: full in 20 min …"
std::string MemoryText(const WatchedGpu& gpu) {
  if (!gpu.memory) return "cannot be read: " + gpu.failure;
  const DriverMemory& memory = *gpu.memory;
  std::string text = fmt::format("{} of {} used, {} free", FormatBytes(memory.used),
                                 FormatBytes(memory.total), FormatBytes(memory.free));
  if (gpu.busy) text += fmt::format(", busy {} %", *gpu.busy);
  if (gpu.trend.kind != TrendKind::kUnknown) text += ", " + TrendText(gpu.trend);
  if (gpu.seconds_until_full) {
    text += fmt::format(": full in {} at this rate", DurationText(*gpu.seconds_until_full));
  }
  return text;
}

/// Which columns have anything in them.
struct Shown {
  bool reports = false;
  bool trends = false;
};

Table ProcessTable(const Shown& shown) {
  std::vector<Column> columns = {{.heading = "process", .right = true},
                                 {.heading = "used", .right = true}};
  if (shown.reports) {
    columns.insert(columns.begin() + 1, {.heading = "rank", .right = true});
    columns.push_back({.heading = "reserved", .right = true});
    columns.push_back({.heading = "allocated", .right = true});
    columns.push_back({.heading = "peak", .right = true, .may_go = true});
    columns.push_back({.heading = "steps", .right = true, .may_go = true});
  }
  if (shown.trends) columns.push_back({.heading = "trend", .right = true});
  columns.push_back({.heading = "program", .wraps = true});
  return Table(std::move(columns));
}

std::vector<std::string> ProcessRow(const WatchedProcess& process, const Shown& shown) {
  std::vector<std::string> cells = {fmt::format("{}", process.pid), OrDash(process.used)};
  if (shown.reports) {
    const std::optional<LiveDevice>& own = process.reported;
    cells.insert(cells.begin() + 1, process.rank ? fmt::format("{}", *process.rank) : "-");
    cells.push_back(own ? FormatBytes(own->reserved) : "-");
    cells.push_back(own ? FormatBytes(own->allocated) : "-");
    cells.push_back(own ? FormatBytes(own->peak_allocated) : "-");
    cells.push_back(process.optimizer_steps ? fmt::format("{}", *process.optimizer_steps) : "-");
  }
  if (shown.trends) cells.push_back(TrendText(process.trend));
  cells.push_back(process.program.empty() ? "-" : Printable(process.program));
  return cells;
}

/// What a row has no column for.
std::vector<std::string> Remarks(const WatchedProcess& process) {
  std::vector<std::string> remarks;
  if (process.budget) {
    std::string text = fmt::format("budget {}", FormatBytes(*process.budget));
    if (process.seconds_until_budget) {
      text +=
          fmt::format(", reached in {} at this rate", DurationText(*process.seconds_until_budget));
    }
    remarks.push_back(std::move(text));
  }
  if (process.host) {
    std::string text = fmt::format("host: {} resident", FormatBytes(process.host->resident));
    if (process.host->processes > 1) {
      text += fmt::format(" in {} processes", process.host->processes);
    }
    if (process.pinned.value_or(0) > 0) {
      text += fmt::format(", {} pinned", FormatBytes(*process.pinned));
    }
    remarks.push_back(std::move(text));
  }
  if (process.reported && process.age > kLate) {
    remarks.push_back(fmt::format("last reported {} ago", DurationText(process.age)));
  }
  return remarks;
}

void WriteGpu(Writer& w, const WatchedGpu& gpu) {
  w.Line(w.Bold(fmt::format("GPU {}  {}", gpu.index, Printable(gpu.name))) +
         (gpu.memory ? "  " + Bar(*gpu.memory) : ""));
  w.Wrapped(Printable(MemoryText(gpu)), "  ", "  ");
  if (gpu.processes.empty()) {
    if (gpu.memory) w.Line(w.Dim("  no process to be seen from here"));
    return;
  }
  Shown shown;
  for (const WatchedProcess& process : gpu.processes) {
    shown.reports |= process.reported.has_value();
    shown.trends |= process.trend.kind != TrendKind::kUnknown;
  }
  Table table = ProcessTable(shown);
  for (const WatchedProcess& process : gpu.processes) {
    table.Row(ProcessRow(process, shown));
    for (std::string& remark : Remarks(process)) table.Under(std::move(remark));
  }
  table.WriteTo(w);
}

void WriteGpus(Writer& w, const std::vector<WatchedGpu>& gpus) {
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    if (i > 0) w.Line();
    WriteGpu(w, gpus[i]);
  }
}

std::string TimeOfDay(double time) {
  const auto seconds = static_cast<std::time_t>(time);
  std::tm local{};
  ::localtime_r(&seconds, &local);
  return fmt::format("{:02}:{:02}:{:02}", local.tm_hour, local.tm_min, local.tm_sec);
}

}  // namespace

std::string WatchText(const WatchSample& sample, bool with_time, const TextStyle& style) {
  Writer w(style);
  if (with_time) w.Line(w.Dim(TimeOfDay(sample.time)));
  if (sample.machines.empty()) {
    if (sample.gpus.empty()) w.Line("the driver tells of no GPU any more");
    WriteGpus(w, sample.gpus);
  }
  for (std::size_t i = 0; i < sample.machines.size(); ++i) {
    const WatchedMachine& machine = sample.machines[i];
    if (i > 0) w.Line();
    w.Line(w.Bold(Printable(machine.name)));
    if (!machine.failure.empty()) {
      w.Wrapped(Printable(machine.failure), "  ", "  ");
    } else if (machine.gpus.empty()) {
      w.Line("  it tells of no GPU");
    }
    WriteGpus(w, machine.gpus);
  }
  return w.Take();
}

}  // namespace plimsoll

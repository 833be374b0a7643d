#include "report/host_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/printable.h"
#include "base/text.h"
#include "report/format/table.h"

namespace plimsoll {
namespace {

constexpr std::size_t kMostHostRows = 12;

std::string SizeOrDash(const std::optional<Bytes>& size) {
  return size && *size >= kMiB ? FormatBytes(*size) : "–";
}

/// "killed", "signal 15", "exit code 1"; nothing where it was alive to the end or nobody saw.
std::string EndText(const HostReport& host, std::size_t process, bool killed) {
  if (killed) return "killed";
  const std::optional<HostDeath>& death = host.processes[process].death;
  if (!death) return "";
  if (death->signal) return fmt::format("signal {}", *death->signal);
  return death->code ? fmt::format("exit code {}", *death->code) : "ended";
}

std::vector<bool> Killed(const HostReport& host) {
  std::vector<bool> killed(host.processes.size());
  for (const HostKill& kill : host.kills) killed[kill.process] = true;
  return killed;
}

/// Those that were killed before the others.
std::vector<std::size_t> LargestFirst(const HostReport& host, const std::vector<bool>& killed) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < host.processes.size(); ++i) {
    if (host.processes[i].then) order.push_back(i);
  }
  std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t i) {
    return std::pair(bool{killed[i]}, host.processes[i].then->resident);
  });
  return order;
}

void WriteHostTable(Writer& w, const HostReport& host) {
  Table table({{.heading = "process"},
               {.heading = "resident", .right = true},
               {.heading = "shared", .right = true},
               {.heading = "pinned", .right = true, .may_go = true},
               {.heading = "grew by", .right = true},
               {.heading = "end"}});
  const std::vector<bool> killed = Killed(host);
  const std::vector<std::size_t> order = LargestFirst(host, killed);
  for (std::size_t i = 0; i < order.size() && i < kMostHostRows; ++i) {
    const HostProcessReport& process = host.processes[order[i]];
    table.Row({Printable(HostProcessText(process.process)), FormatBytes(process.then->resident),
               SizeOrDash(process.then->shared), SizeOrDash(process.then->pinned),
               process.growth ? FormatBytes(process.growth->to - process.growth->from) : "–",
               EndText(host, order[i], killed[order[i]])});
  }
  table.WriteTo(w);
  if (order.size() > kMostHostRows) {
    w.Line(w.Dim(fmt::format("  … {} more with --json", order.size() - kMostHostRows)));
  }
}

Json GrowthJson(const std::optional<HostGrowth>& growth) {
  if (!growth) return nullptr;
  return {{"from", growth->from},
          {"to", growth->to},
          {"since", growth->since},
          {"until", growth->until},
          {"bytes_per_second", static_cast<Bytes>(growth->rate())}};
}

Json DeathJson(const std::optional<HostDeath>& death) {
  if (!death) return nullptr;
  return {{"time", death->time}, {"signal", OrNull(death->signal)}, {"code", OrNull(death->code)}};
}

Json ProcessJson(const HostProcessReport& p) {
  Json json = {{"pid", p.process.pid},
               {"parent", p.process.parent},
               {"role", HostRoleName(p.process.role)},
               {"number", OrNull(p.process.number)},
               {"rank", OrNull(p.process.rank)},
               {"command", p.process.command},
               {"peak_resident", p.peak_resident},
               {"peak_time", p.peak_time},
               {"growth", GrowthJson(p.growth)},
               {"death", DeathJson(p.death)}};
  Json then;
  if (p.then) {
    then = {{"resident", p.then->resident},
            {"shared", p.then->shared},
            {"proportional", OrNull(p.then->proportional)},
            {"pinned", OrNull(p.then->pinned)}};
  }
  json["then"] = std::move(then);
  return json;
}

}  // namespace

void WriteHost(Writer& w, const HostReport& host) {
  if (host.samples == 0) return;
  const std::string of = host.host.empty() ? "" : " of " + Printable(host.host);
  const std::string_view when = host.kills.empty() ? "at the peak of all together" : "at the kill";
  w.Heading(
      fmt::format("Host memory{} {} ({})", of, when, HostTimeText(host.instant, host.utc_offset)));
  WriteHostTable(w, host);
  std::string sum = FormatBytes(host.together) + " together";
  if (host.limit) {
    sum += fmt::format(", {} {}", FormatBytes(*host.limit),
                       host.limit_kind == HostLimitKind::kGroup ? "allowed by the control group"
                                                                : "in the machine");
  }
  if (host.left) sum += fmt::format(", {} left", FormatBytes(*host.left));
  if (host.shm.value_or(0) >= kMiB && host.shm_size) {
    sum +=
        fmt::format(", {} of {} in /dev/shm", FormatBytes(*host.shm), FormatBytes(*host.shm_size));
  }
  w.Wrapped(sum, "  = ", "    ");
  for (const std::string& note : host.notes) w.Wrapped(note, "  - ", "    ");
}

Json HostJson(const HostReport& host) {
  Json processes = Json::array();
  for (const HostProcessReport& process : host.processes) processes.push_back(ProcessJson(process));
  Json kills = Json::array();
  for (const HostKill& kill : host.kills) {
    kills.push_back({{"pid", host.processes[kill.process].process.pid},
                     {"time", kill.time},
                     {"signal", kill.signal},
                     {"by_kernel_for_memory", KillCertaintyName(kill.certainty)},
                     {"shared_memory", kill.shared_memory},
                     {"because", kill.because}});
  }
  return {{"file", host.file},
          {"host", host.host},
          {"utc_offset", host.utc_offset},
          {"samples", host.samples},
          {"began", host.began},
          {"ended", host.ended},
          {"limit", OrNull(host.limit)},
          {"limit_of", HostLimitKindName(host.limit_kind)},
          {"instant", host.instant},
          {"together", host.together},
          {"left", OrNull(host.left)},
          {"peak_together", host.peak_together},
          {"peak_time", host.peak_time},
          {"counted_twice", host.counted_twice},
          {"least_left", OrNull(host.least_left)},
          {"shm", OrNull(host.shm)},
          {"shm_size", OrNull(host.shm_size)},
          {"kills", std::move(kills)},
          {"processes", std::move(processes)},
          {"notes", host.notes}};
}

}  // namespace plimsoll

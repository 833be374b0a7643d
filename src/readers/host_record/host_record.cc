#include "readers/host_record/host_record.h"

#include <cmath>
#include <map>
#include <string>
#include <string_view>

#include "files/json.h"
#include "files/read_budget.h"

namespace plimsoll {
namespace {

/// What no machine has: larger figures are damage.
constexpr std::int64_t kMostHostBytes = std::int64_t{1} << 50;
constexpr std::int64_t kMostOfAll = std::int64_t{1} << 56;
constexpr std::int64_t kMostHostPid = std::int64_t{1} << 31;
/// Seconds since 1970, and what a calendar still has a name for.
constexpr double kLatestHostTime = 253402300799.0;
/// The sampler keeps its file far below these.
constexpr std::size_t kLongestHostFile = std::size_t{64} << 20;
constexpr std::size_t kMostHostEntries = 4'000'000;
constexpr std::size_t kLongestHostText = 200;

std::optional<std::int64_t> HostNumber(const Json& value, std::int64_t most = kMostHostBytes) {
  const std::optional<std::int64_t> number = value.integer();
  return number && *number >= 0 && *number <= most ? number : std::nullopt;
}

std::optional<double> HostTime(const Json& value) {
  const std::optional<double> time = value.number();
  return time && std::isfinite(*time) && *time >= 0 && *time <= kLatestHostTime ? time
                                                                                : std::nullopt;
}

std::optional<int> SmallHostNumber(const Json& value, int most = 1'000'000) {
  const std::optional<std::int64_t> number = HostNumber(value, most);
  return number ? std::optional(static_cast<int>(*number)) : std::nullopt;
}

OomKills KillsIn(const Json& value) {
  return {.group = HostNumber(value["group"]), .machine = HostNumber(value["machine"])};
}

class HostReader {
 public:
  explicit HostReader(const Input& input) : input_(input) {}

  Result<HostRecord> Run() {
    if (input_.bytes().size() > kLongestHostFile) return Wrong("it is too large for such a file");
    std::string_view rest = input_.bytes();
    if (!ReadHeader(Next(rest))) {
      return Wrong("its first line is not that of a record of the host's memory");
    }
    while (!rest.empty()) {
      const std::string_view line = Next(rest);
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      const bool whole = !rest.empty() || input_.bytes().ends_with('\n');
      // What a kill cut off in the middle of a write is as it must be.
      if (!ReadLine(line) && whole) ++record_.skipped["lines that could not be read"];
      if (entries_ > kMostHostEntries) return Wrong("it lists more processes than any job has");
    }
    return std::move(record_);
  }

 private:
  Error Wrong(std::string message) const {
    return {.message = std::move(message), .file = input_.name(), .hint = "docs/formats/host.md"};
  }

  static std::string_view Next(std::string_view& rest) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    return line;
  }

  std::optional<Json> Parsed(std::string_view line) {
    ReadBudget budget(input_);  // each line's tree is gone before the next
    Result<Json> json = ReadJson(line, budget);
    if (!json || !json->is_object()) return std::nullopt;
    return std::move(*json);
  }

  bool ReadHeader(std::string_view line) {
    const std::optional<Json> json = Parsed(line);
    if (!json || (*json)["schema"] != "plimsoll.host/1") return false;
    const Json& head = *json;
    record_.file = input_.name();
    record_.host = TextOr(head["host"], "").substr(0, kLongestHostText);
    record_.began = HostTime(head["began"]).value_or(0);
    const std::int64_t offset = head["utc_offset"].integer().value_or(0);
    if (offset > -86400 && offset < 86400) record_.utc_offset = static_cast<int>(offset);
    record_.memory = HostNumber(head["memory"]);
    record_.swap = HostNumber(head["swap"]);
    record_.shm = HostNumber(head["shm"]);
    if (head["group"].is_object()) {
      record_.group = HostGroup{.path = TextOr(head["group"]["path"], "").substr(0, 1000),
                                .limit = HostNumber(head["group"]["limit"])};
    }
    record_.kills = KillsIn(head["oom_kills"]);
    return true;
  }

  bool ReadLine(std::string_view line) {
    const std::optional<Json> json = Parsed(line);
    if (!json) return false;
    entries_ += 4;
    if (json->contains("process")) return ReadProcess(*json);
    if (json->contains("held")) return ReadSample(*json);
    if (json->contains("gone")) return ReadDeath(*json);
    if (json->contains("end")) return ReadEnd(*json);
    return false;
  }

  bool ReadProcess(const Json& json) {
    const auto pid = HostNumber(json["process"], kMostHostPid);
    const auto role = HostRoleOf(TextOr(json["role"], ""));
    if (!pid || *pid == 0 || !role) return false;
    HostProcess process{.pid = *pid,
                        .started = HostNumber(json["started"]).value_or(0),
                        .parent = HostNumber(json["parent"], kMostHostPid).value_or(0),
                        .role = *role,
                        .number = SmallHostNumber(json["number"]),
                        .rank = SmallHostNumber(json["rank"]),
                        .command = TextOr(json["command"], "").substr(0, kLongestHostText)};
    const auto known = by_pid_.find(*pid);
    // The same one, of which more is known by now.
    if (known != by_pid_.end() && record_.processes[known->second].started == process.started) {
      record_.processes[known->second] = std::move(process);
      return true;
    }
    by_pid_[*pid] = record_.processes.size();
    record_.processes.push_back(std::move(process));
    return true;
  }

  /// Of a process that no line told of, it is at least known that it was there.
  std::size_t IndexOf(std::int64_t pid) {
    const auto [at, fresh] = by_pid_.emplace(pid, record_.processes.size());
    if (fresh) {
      record_.processes.push_back({.pid = pid});
      entries_ += 4;
    }
    return at->second;
  }

  bool ReadSample(const Json& json) {
    const std::optional<double> time = HostTime(json["time"]);
    if (!time || !json["held"].is_array()) return false;
    // Clocks are set back; what follows counts on their order.
    if (!record_.samples.empty() && *time < record_.samples.back().time) return false;
    HostSample sample{.time = *time,
                      .available = HostNumber(json["available"]),
                      .swap_free = HostNumber(json["swap_free"]),
                      .shm = HostNumber(json["shm"]),
                      .group = HostNumber(json["group"]),
                      .kills = KillsIn(json["oom_kills"]),
                      .others = HostNumber(json["others"]).value_or(0)};
    Bytes sum = sample.others;
    for (const Json& row : json["held"].items()) {
      const auto pid = HostNumber(row[std::size_t{0}], kMostHostPid);
      const auto resident = HostNumber(row[std::size_t{1}]);
      const auto shared = HostNumber(row[std::size_t{2}]);
      if (!pid || *pid == 0 || !resident || !shared) return false;
      const auto proportional = HostNumber(row[std::size_t{3}]);
      const auto pinned = HostNumber(row[std::size_t{4}]);
      // So that sums are safe, whoever adds up what.
      sum += *resident + proportional.value_or(0) + pinned.value_or(0);
      if (sum > kMostOfAll) return false;
      sample.held.push_back({.process = IndexOf(*pid),
                             .resident = *resident,
                             .shared = std::min(*shared, *resident),
                             .proportional = proportional,
                             .pinned = pinned});
    }
    entries_ += sample.held.size();
    record_.samples.push_back(std::move(sample));
    return true;
  }

  bool ReadDeath(const Json& json) {
    const auto pid = HostNumber(json["gone"], kMostHostPid);
    const auto time = HostTime(json["time"]);
    if (!pid || *pid == 0 || !time) return false;
    record_.deaths.push_back({.process = IndexOf(*pid),
                              .time = *time,
                              .signal = SmallHostNumber(json["signal"], 127),
                              .code = SmallHostNumber(json["code"], 255)});
    return true;
  }

  bool ReadEnd(const Json& json) {
    const auto time = HostTime(json["end"]);
    if (!time) return false;
    HostEnd end{.time = *time,
                .code = SmallHostNumber(json["code"], 255).value_or(0),
                .signal = SmallHostNumber(json["signal"], 127),
                .kills = KillsIn(json["oom_kills"])};
    for (const Json& pid : json["kernel_log"].items()) {
      if (const auto number = HostNumber(pid, kMostHostPid)) end.named_by_kernel.push_back(*number);
    }
    record_.end = std::move(end);
    return true;
  }

  const Input& input_;
  HostRecord record_;
  std::map<std::int64_t, std::size_t> by_pid_;
  std::size_t entries_ = 0;  // of all tables, the large ones counted more than once
};

}  // namespace

Result<HostRecord> ReadHostRecord(const Input& input) { return HostReader(input).Run(); }

}  // namespace plimsoll

#include "launch/processes.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <map>
#include <thread>
#include <tuple>

#include "base/printable.h"
#include "files/json.h"
#include "launch/host_log.h"
#include "launch/plain_file.h"

namespace plimsoll {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLongestProcessFile = std::size_t{1} << 20;

/// A file of the folder that is there; nothing outside of it.
std::optional<std::string> FileIn(const fs::path& folder, const std::string& name) {
  const fs::path path = folder / name;
  const bool inside = !name.empty() && name.find("..") == std::string::npos && name[0] != '/';
  std::error_code failed;
  if (!inside || !fs::is_regular_file(path, failed)) return std::nullopt;
  return path.string();
}

void ReadSnapshots(const Json& object, const fs::path& folder, RecordedProcess& process) {
  for (const Json& entry : object["snapshots"].items()) {
    const std::string name = TextOr(entry["file"], "");
    const std::optional<std::string> path = FileIn(folder, name);
    if (!path) continue;
    process.snapshots.push_back({.path = *path,
                                 .bytes = entry["bytes"].integer().value_or(0),
                                 .full = entry["full"].boolean().value_or(false),
                                 .aside = name.find('/') != std::string::npos});
  }
}

void ReadEnd(const Json& object, RecordedProcess& process) {
  const Json& end = object["ended"];
  const std::string how = TextOr(end["how"], "");
  if (how == "exit") process.end = ProcessEnd::kExit;
  if (how == "exception") process.end = ProcessEnd::kException;
  if (how == "signal") process.end = ProcessEnd::kSignal;
  process.text = TextOr(end["text"], "");
  process.detail = TextOr(end[process.end == ProcessEnd::kSignal ? "signal" : "type"], "");
}

std::optional<RecordedProcess> ReadProcess(const fs::path& path) {
  const std::optional<std::string> text = ReadPlainFile(path, kLongestProcessFile);
  if (!text) return std::nullopt;
  const Json object = ParseOwnJson(*text);
  if (object["schema"] != "plimsoll.process/1") return std::nullopt;
  RecordedProcess process{
      .pid = object["pid"].integer().value_or(0),
      .host = TextOr(object["host"], ""),
      .job = TextOr(object["job"], ""),
      .program = TextOr(object["program"], ""),
      .restart = std::max<std::int64_t>(0, object["restart"].integer().value_or(0)),
      .began = object["began"].number().value_or(0),
      .wrote = object["wrote"].number().value_or(0),
      .ooms = object["ooms"].integer().value_or(0),
      .optimizer_steps = object["optimizer_steps"].integer().value_or(0),
      .by_script = TextOr(object["history"], "") == "script",
      .max_entries = object["max_entries"].integer().value_or(0),
      .seconds = object["seconds"].number().value_or(0)};
  if (const auto rank = object["rank"].integer()) process.rank = static_cast<int>(*rank);
  process.error_text = FileIn(path.parent_path(), TextOr(object["error_text"], ""));
  ReadEnd(object, process);
  ReadSnapshots(object, path.parent_path(), process);
  return process;
}

bool IsHere(const RecordedProcess& process) {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 && process.host == name.data();
}

/// The one to be explained stands before the other.
bool Matters(const RecordedProcess* a, const RecordedProcess* b) {
  const auto key = [](const RecordedProcess& p) {
    return std::tuple(-p.restart, p.ooms == 0, p.began);
  };
  return key(*a) < key(*b);
}

/// The last job in which memory ran out, else the last of all.
std::string JobThatMatters(const std::vector<RecordedProcess>& processes) {
  const RecordedProcess* last = nullptr;
  const auto key = [](const RecordedProcess& p) { return std::pair(p.ooms > 0, p.began); };
  for (const RecordedProcess& process : processes) {
    if (process.Main() == nullptr) continue;
    if (last == nullptr || key(process) > key(*last)) last = &process;
  }
  return last != nullptr ? last->job : "";
}

std::vector<const RecordedProcess*> Chosen(const std::vector<RecordedProcess>& processes) {
  std::map<int, const RecordedProcess*> by_rank;
  const RecordedProcess* single = nullptr;
  const std::string job = JobThatMatters(processes);
  for (const RecordedProcess& process : processes) {
    if (process.Main() == nullptr || process.job != job) continue;
    if (process.rank) {
      const RecordedProcess*& best = by_rank[*process.rank];
      if (best == nullptr || Matters(&process, best)) best = &process;
    } else {
      const auto key = [](const RecordedProcess& p) {
        return std::tuple(p.ooms > 0, p.ooms > 0 ? p.wrote : p.wrote - p.began);
      };
      if (single == nullptr || key(process) > key(*single)) single = &process;
    }
  }
  std::vector<const RecordedProcess*> chosen;
  for (const auto& [rank, process] : by_rank) chosen.push_back(process);
  if (chosen.empty() && single != nullptr) chosen.push_back(single);
  return chosen;
}

/// "pid 41 on node2 (ray::Actor.step)"
std::string InWords(const RecordedProcess& process) {
  const std::string host = Printable(process.host);
  const std::string program = Printable(process.program);
  return fmt::format("{}pid {}{}{}", process.rank ? fmt::format("rank {}, ", *process.rank) : "",
                     process.pid, host.empty() ? "" : " on " + host,
                     program.empty() ? "" : fmt::format(" ({})", program));
}

/// "pid 41, pid 42, pid 43 and 2 more"
std::string InWords(const std::vector<const RecordedProcess*>& processes) {
  constexpr std::size_t kNamed = 3;
  std::string named;
  for (std::size_t i = 0; i < processes.size() && i < kNamed; ++i) {
    named += (i == 0 ? "" : ", ") + InWords(*processes[i]);
  }
  if (processes.size() > kNamed) named += fmt::format(" and {} more", processes.size() - kNamed);
  return named;
}

std::string OthersInWords(const std::vector<RecordedProcess>& processes,
                          const std::vector<const RecordedProcess*>& chosen) {
  std::vector<const RecordedProcess*> others;
  for (const RecordedProcess& process : processes) {
    const bool is_chosen = std::ranges::find(chosen, &process) != chosen.end();
    if (process.Main() != nullptr && !is_chosen) others.push_back(&process);
  }
  if (others.empty() || chosen.empty()) return "";
  return fmt::format("{} more {} recorded there: {}; give a snapshot by its name to explain it",
                     others.size(), others.size() == 1 ? "process" : "processes", InWords(others));
}

/// Processes that were killed before they had written their end, and those without a snapshot.
std::string MissingInWords(const std::vector<RecordedProcess>& processes) {
  std::vector<const RecordedProcess*> cut_off;
  std::vector<const RecordedProcess*> without;
  std::size_t cut_off_without = 0;
  for (const RecordedProcess& process : processes) {
    const bool has_none = process.Main() == nullptr;
    if (process.end != ProcessEnd::kUnknown) {
      if (has_none) without.push_back(&process);
    } else if (!IsAlive(process)) {
      cut_off.push_back(&process);
      if (has_none) ++cut_off_without;
    }
  }
  const auto has = [](const auto& some) { return some.size() == 1 ? "has" : "have"; };
  std::string said;
  if (!cut_off.empty()) {
    said = fmt::format("{} {} no end in the record: killed or crashed", InWords(cut_off),
                       has(cut_off));
    if (cut_off.size() == 1 && cut_off_without == 1) said += ", without a snapshot";
    if (cut_off.size() > 1 && cut_off_without > 0) {
      said += fmt::format(", {} without a snapshot", cut_off_without);
    }
  }
  if (without.empty()) return said;
  return fmt::format("{}{}{} {} no snapshot in the record", said, said.empty() ? "" : "; ",
                     InWords(without), has(without));
}

}  // namespace

const SnapshotFile* RecordedProcess::Main() const {
  const auto found =
      std::ranges::find_if(snapshots, [](const SnapshotFile& file) { return !file.aside; });
  return found == snapshots.end() ? nullptr : &*found;
}

std::vector<RecordedProcess> ReadProcesses(const RunFolder& folder) {
  std::vector<RecordedProcess> processes;
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder.path, failed)) {
    if (entry.path().extension() != ".json") continue;
    if (std::optional<RecordedProcess> process = ReadProcess(entry.path())) {
      processes.push_back(*std::move(process));
    }
  }
  std::ranges::sort(processes, {}, [](const RecordedProcess& p) {
    return std::tuple(!p.rank, p.rank.value_or(0), p.began, p.pid);
  });
  return processes;
}

bool IsAlive(const RecordedProcess& process) {
  return IsHere(process) && process.pid > 0 && ::kill(static_cast<pid_t>(process.pid), 0) == 0;
}

void AwaitStragglers(const RunFolder& folder, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::duration<double>(seconds);
  const auto writes = [](const RecordedProcess& process) {
    return process.end == ProcessEnd::kUnknown && IsAlive(process);
  };
  while (Clock::now() < until && std::ranges::any_of(ReadProcesses(folder), writes)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

FilesOfRun FilesToExplain(const RunFolder& folder, const std::vector<RecordedProcess>& processes) {
  FilesOfRun files{.host = FileIn(folder.path, kHostFile)};
  for (const RecordedProcess& process : processes) {
    if (process.text.find("DataLoader worker") == std::string::npos) continue;
    files.worker_texts.push_back(process.text);
  }
  const std::vector<const RecordedProcess*> chosen = Chosen(processes);
  files.others = OthersInWords(processes, chosen);
  files.missing = MissingInWords(processes);
  for (const RecordedProcess* process : chosen) {
    files.snapshots.push_back(process->Main()->path);
    if (process->error_text) files.error_texts.push_back(*process->error_text);
  }
  return files;
}

}  // namespace plimsoll

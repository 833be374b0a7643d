#include "launch/live.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <limits>

#include "files/json.h"

#include "launch/plain_file.h"
#include "launch/process_tree.h"

namespace plimsoll {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLongestReport = 64 * 1024;
constexpr std::size_t kMostRuns = 256;
constexpr std::size_t kMostProcesses = 1024;
constexpr std::size_t kMostDevices = 64;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 50;

/// Where registers may be, the best first. A shell of a session has XDG_RUNTIME_DIR and a job of a
/// scheduler has not, so whoever looks for runs looks into all of them.
std::vector<fs::path> Registers() {
  if (const char* own = std::getenv("PLIMSOLL_RUNS"); own != nullptr && *own != '\0') return {own};
  std::vector<fs::path> registers;
  const char* const session = std::getenv("XDG_RUNTIME_DIR");
  if (session != nullptr && *session == '/') registers.push_back(fs::path(session) / "plimsoll");
  const fs::path usual = fmt::format("/run/user/{}/plimsoll", ::geteuid());
  if (registers.empty() || registers.front() != usual) registers.push_back(usual);
  registers.emplace_back(fmt::format("/tmp/plimsoll-{}", ::geteuid()));
  return registers;
}

bool IsRunning(std::int64_t pid) {
  return pid > 0 && (::kill(static_cast<pid_t>(pid), 0) == 0 || errno == EPERM);
}

std::optional<std::int64_t> NumberIn(const std::string& name) {
  std::int64_t number = 0;
  const char* const end = name.data() + name.size();
  const auto read = std::from_chars(name.data(), end, number);
  if (read.ec != std::errc() || read.ptr != end || number <= 0) return std::nullopt;
  return number;
}

/// A hook that lies in its run's folder is as safe as that; one among temporary files is by itself.
bool IsSafe(const fs::path& hook) {
  return IsOwnersAlone(hook) && (hook.filename() != "hook" || IsOwnersAlone(hook.parent_path()));
}

/// The hook's folder of each run that is entered and under way.
std::vector<fs::path> HooksOfRuns() {
  std::vector<fs::path> hooks;
  std::error_code failed;
  for (const fs::path& place : Registers()) {
    if (!IsOwnersAlone(place)) continue;
    for (fs::directory_iterator i(place, failed), end; !failed && i != end; i.increment(failed)) {
      const std::optional<std::int64_t> pid = NumberIn(i->path().filename().string());
      if (!pid || hooks.size() >= kMostRuns) continue;
      if (!IsRunning(*pid)) {
        ::unlink(i->path().c_str());  // that run was killed
        continue;
      }
      std::error_code no_link;
      const fs::path hook = fs::read_symlink(i->path(), no_link);
      // Processes that no `plimsoll run` started enter themselves, each by the folder of all.
      const bool known = std::ranges::find(hooks, hook) != hooks.end();
      if (!no_link && !known && IsSafe(hook)) hooks.push_back(hook);
    }
  }
  return hooks;
}

std::optional<std::int64_t> NumberOf(const Json& object, const char* key, std::int64_t most) {
  const std::optional<std::int64_t> number = object[key].integer();
  return number && *number >= 0 && *number <= most ? number : std::nullopt;
}

std::optional<int> SmallOf(const Json& object, const char* key) {
  const std::optional<std::int64_t> number = NumberOf(object, key, 1'000'000);
  return number ? std::optional(static_cast<int>(*number)) : std::nullopt;
}

std::optional<LiveDevice> ParseDevice(const Json& object) {
  const std::optional<int> device = SmallOf(object, "device");
  const auto allocated = NumberOf(object, "allocated", kMostBytes);
  const auto reserved = NumberOf(object, "reserved", kMostBytes);
  const auto peak_allocated = NumberOf(object, "peak_allocated", kMostBytes);
  const auto peak_reserved = NumberOf(object, "peak_reserved", kMostBytes);
  if (!device || !allocated || !reserved || !peak_allocated || !peak_reserved) return std::nullopt;
  const std::string uuid = TextOr(object["uuid"], "");
  const bool is_uuid =
      uuid.size() == 36 && uuid.find_first_not_of("0123456789abcdef-") == std::string::npos;
  return LiveDevice{.device = *device,
                    .gpu = SmallOf(object, "gpu"),
                    .uuid = is_uuid ? uuid : "",
                    .allocated = *allocated,
                    .reserved = *reserved,
                    .peak_allocated = *peak_allocated,
                    .peak_reserved = *peak_reserved,
                    .private_pools = NumberOf(object, "private_pools", kMostBytes),
                    .rejections = NumberOf(object, "rejections", kMostBytes)};
}

std::string HostName() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

void ReadReports(const fs::path& hook, const std::string& host, std::vector<LiveProcess>& to) {
  std::error_code failed;
  for (fs::directory_iterator i(hook, failed), end; !failed && i != end; i.increment(failed)) {
    if (i->path().extension() != ".status" || to.size() >= kMostProcesses) continue;
    const std::optional<std::string> text = ReadPlainFile(i->path(), kLongestReport);
    if (!text) continue;
    std::optional<LiveProcess> process = ParseLiveProcess(*text, host);
    if (process && IsRunning(process->pid)) to.push_back(*std::move(process));
  }
}

std::optional<LiveHost> HostOf(std::int64_t pid) {
  ProcessTree tree(pid, HostPlaces{});
  tree.Look({}, std::nullopt);
  if (tree.processes().empty()) return std::nullopt;
  LiveHost host;
  for (const auto& [of, known] : tree.processes()) {
    host.resident += known.share.resident;
    ++host.processes;
  }
  return host;
}

}  // namespace

Registration::Registration(const RunFolder& folder) {
  std::error_code failed;
  const fs::path target = fs::absolute(folder.hook, failed).lexically_normal();
  if (failed) return;
  for (const fs::path& place : Registers()) {
    ::mkdir(place.c_str(), 0700);
    // Whoever made it before us must have been us, and for us alone.
    if (!IsOwnersAlone(place)) continue;
    const std::string entry = (place / fmt::format("{}", ::getpid())).string();
    ::unlink(entry.c_str());  // of a run that was killed and had the same number
    if (::symlink(target.c_str(), entry.c_str()) != 0) continue;
    entry_ = entry;
    return;
  }
}

Registration::~Registration() {
  if (!entry_.empty()) ::unlink(entry_.c_str());
}

std::optional<LiveProcess> ParseLiveProcess(std::string_view text, std::string_view host) {
  const Json object = ParseOwnJson(text);
  if (object["schema"] != "plimsoll.status/1" || object["host"] != host) return std::nullopt;
  const auto pid = NumberOf(object, "pid", std::numeric_limits<pid_t>::max());
  const std::optional<double> wrote = object["wrote"].number();
  if (!pid || *pid == 0 || !wrote || !object["devices"].is_array()) return std::nullopt;
  LiveProcess process{
      .pid = *pid,
      .rank = SmallOf(object, "rank"),
      .optimizer_steps = NumberOf(object, "optimizer_steps", kMostBytes).value_or(0),
      .budget = NumberOf(object, "budget", kMostBytes),
      .pinned = NumberOf(object, "pinned", kMostBytes),
      .wrote = *wrote};
  for (const Json& entry : object["devices"].items()) {
    std::optional<LiveDevice> device = ParseDevice(entry);
    if (device && process.devices.size() < kMostDevices) {
      process.devices.push_back(*std::move(device));
    }
  }
  return process;
}

std::vector<LiveProcess> ReadReportsOf(const std::string& hook) {
  std::vector<LiveProcess> processes;
  ReadReports(hook, HostName(), processes);
  return processes;
}

std::vector<LiveProcess> ReadLiveProcesses() {
  std::vector<LiveProcess> processes;
  const std::string host = HostName();
  for (const fs::path& hook : HooksOfRuns()) ReadReports(hook, host, processes);
  std::ranges::sort(processes, {}, &LiveProcess::pid);
  for (LiveProcess& process : processes) process.host = HostOf(process.pid);
  return processes;
}

}  // namespace plimsoll

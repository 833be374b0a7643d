#include "launch/host_limits.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>

namespace plimsoll {
namespace {

std::optional<Bytes> SizeIn(const std::string& path) {
  const std::optional<std::string> text = ReadKernelFile(path, 64);
  if (!text) return std::nullopt;
  Bytes size = 0;  // "max" is no number, and no limit
  const auto read = std::from_chars(text->data(), text->data() + text->size(), size);
  return read.ec == std::errc() && size >= 0 ? std::optional(size) : std::nullopt;
}

bool IsFolder(const std::string& path) {
  std::error_code failed;
  return std::filesystem::is_directory(path, failed);
}

/// Version 1 has a number that no machine reaches where there is no limit.
std::optional<Bytes> LimitIn(const std::string& folder, bool version_2) {
  constexpr Bytes kNoLimit = Bytes{1} << 50;
  const auto limit = SizeIn(folder + (version_2 ? "/memory.max" : "/memory.limit_in_bytes"));
  return limit && *limit < kNoLimit ? limit : std::nullopt;
}

/// Without the files that are merely cached, which the kernel drops before it kills anybody.
/// Shared memory is not among them.
std::optional<Bytes> UsedIn(const std::string& folder, bool version_2) {
  const auto used = SizeIn(folder + (version_2 ? "/memory.current" : "/memory.usage_in_bytes"));
  const auto stat = ReadKernelFile(folder + "/memory.stat");
  if (!used || !stat) return used;
  const std::string total = version_2 ? "" : "total_";
  const Bytes cached = CountAfter(*stat, total + "active_file").value_or(0) +
                       CountAfter(*stat, total + "inactive_file").value_or(0);
  return std::max<Bytes>(0, *used - cached);
}

/// The path of the line of /proc/self/cgroup whose second field is this: "" for version 2.
std::optional<std::string> GroupPath(std::string_view text, std::string_view controller) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first == line.npos ? first : first + 1);
    if (second == line.npos) continue;
    const std::string_view named = line.substr(first + 1, second - first - 1);
    // "cpu,memory" where several are mounted as one.
    bool found = named == controller;
    for (std::string_view rest = named; !found && !controller.empty() && !rest.empty();) {
      const std::string_view one = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(rest.size(), one.size() + 1));
      found = one == controller;
    }
    if (found) return std::string(line.substr(second + 1));
  }
  return std::nullopt;
}

}  // namespace

HostLimits::HostLimits(HostPlaces places) : places_(std::move(places)) { FindGroup(); }

void HostLimits::FindGroup() {
  const auto text = ReadKernelFile(places_.proc + "/self/cgroup");
  if (!text) return;
  if (const auto path = GroupPath(*text, "memory"); path && IsFolder(places_.groups + "/memory")) {
    TakeLimits(places_.groups + "/memory", *path);
  } else if (const auto unified = GroupPath(*text, "")) {
    version_2_ = true;
    TakeLimits(places_.groups, *unified);
  }
}

void HostLimits::TakeLimits(const std::string& mount, const std::string& path) {
  // In a container the path may be the host's, and what is mounted is the container's own.
  std::string below = path == "/" || !IsFolder(mount + path) ? "" : path;
  own_ = mount + below;
  group_ = HostGroup{.path = path};
  limited_ = own_;
  for (;;) {
    const std::optional<Bytes> limit = LimitIn(mount + below, version_2_);
    if (limit && (!group_->limit || *limit < *group_->limit)) {
      group_->limit = limit;
      group_->path = below.empty() ? path : below;
      limited_ = mount + below;
    }
    if (below.empty()) break;
    below.resize(below.rfind('/'));
  }
  if (!UsedIn(limited_, version_2_)) group_.reset();  // the root of all groups, or none
}

void HostLimits::Describe(HostRecord& record) const {
  const std::string text = ReadKernelFile(places_.proc + "/meminfo").value_or("");
  record.memory = KilobytesAfter(text, "MemTotal:");
  record.swap = KilobytesAfter(text, "SwapTotal:");
  record.group = group_;
  // A limit above what the machine has limits nothing.
  if (record.group && record.memory && record.group->limit.value_or(0) > *record.memory) {
    record.group->limit.reset();
  }
  struct statvfs shm {};
  if (::statvfs(places_.shm.c_str(), &shm) == 0) {
    record.shm = static_cast<Bytes>(shm.f_blocks) * static_cast<Bytes>(shm.f_frsize);
  }
  record.kills = Kills();
}

void HostLimits::Measure(HostSample& sample) const {
  const std::string text = ReadKernelFile(places_.proc + "/meminfo").value_or("");
  sample.available = KilobytesAfter(text, "MemAvailable:");
  sample.swap_free = KilobytesAfter(text, "SwapFree:");
  if (group_) sample.group = UsedIn(limited_, version_2_);
  struct statvfs shm {};
  if (::statvfs(places_.shm.c_str(), &shm) == 0) {
    sample.shm = static_cast<Bytes>(shm.f_blocks - shm.f_bfree) * static_cast<Bytes>(shm.f_frsize);
  }
  sample.kills = Kills();
}

OomKills HostLimits::Kills() const {
  OomKills kills;
  if (group_) {
    const auto text =
        ReadKernelFile(own_ + (version_2_ ? "/memory.events" : "/memory.oom_control"));
    if (text) kills.group = CountAfter(*text, "oom_kill");
  }
  if (const auto text = ReadKernelFile(places_.proc + "/vmstat", 64 * 1024)) {
    kills.machine = CountAfter(*text, "oom_kill");
  }
  return kills;
}

}  // namespace plimsoll

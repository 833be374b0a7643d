#include "driver/amdgpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace plimsoll {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLongestSysFile = 8192;
constexpr std::size_t kMostAmdProcesses = 65536;
constexpr std::uint64_t kMostAmdBytes = std::uint64_t{1} << 50;

/// One of the kernel's small files, without the end of its line; nothing where it cannot be read.
std::optional<std::string> SysText(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string text(kLongestSysFile, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

std::optional<std::uint64_t> SysNumber(std::string_view text) {
  std::uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number);
  if (text.empty() || read.ec != std::errc() || read.ptr != end) return std::nullopt;
  return number;
}

std::optional<std::uint64_t> SysNumberIn(const fs::path& path) {
  const std::optional<std::string> text = SysText(path);
  return text ? SysNumber(*text) : std::nullopt;
}

std::optional<Bytes> SysBytesIn(const fs::path& path) {
  const std::optional<std::uint64_t> number = SysNumberIn(path);
  if (!number || *number > kMostAmdBytes) return std::nullopt;
  return static_cast<Bytes>(*number);
}

/// "drm_render_minor 128" among the properties of a node.
std::optional<std::uint64_t> PropertyOf(std::string_view properties, std::string_view name) {
  while (!properties.empty()) {
    const std::string_view line = properties.substr(0, properties.find('\n'));
    properties.remove_prefix(std::min(properties.size(), line.size() + 1));
    if (!line.starts_with(name) || line.size() <= name.size() || line[name.size()] != ' ') continue;
    return SysNumber(line.substr(name.size() + 1));
  }
  return std::nullopt;
}

/// The folders of a folder that have numbers for names, by number.
std::map<std::uint64_t, fs::path> NumberedIn(const fs::path& folder) {
  std::map<std::uint64_t, fs::path> numbered;
  std::error_code failed;
  for (fs::directory_iterator i(folder, failed), end; !failed && i != end; i.increment(failed)) {
    const std::optional<std::uint64_t> number = SysNumber(i->path().filename().string());
    if (number && numbered.size() < kMostAmdProcesses) numbered.emplace(*number, i->path());
  }
  return numbered;
}

}  // namespace

Result<AmdGpus> AmdGpus::Find() {
  const char* const own = std::getenv("PLIMSOLL_SYSFS");
  AmdGpus gpus(own != nullptr && *own != '\0' ? own : "/sys");
  for (const auto& [number, node] : NumberedIn(gpus.root_ / "class/kfd/kfd/topology/nodes")) {
    const std::uint64_t id = SysNumberIn(node / "gpu_id").value_or(0);
    const std::string properties = SysText(node / "properties").value_or("");
    const std::optional<std::uint64_t> minor = PropertyOf(properties, "drm_render_minor");
    if (id == 0 || !minor) continue;  // the processor
    gpus.places_.push_back(
        {.device = gpus.root_ / fmt::format("class/drm/renderD{}/device", *minor), .id = id});
  }
  if (gpus.places_.empty()) return Error{.message = "no AMD driver with a GPU that computes here"};
  return gpus;
}

DriverGpu AmdGpus::Read(const Place& place, int index) const {
  DriverGpu gpu{.index = index};
  gpu.name = SysText(place.device / "product_name").value_or("");
  if (gpu.name.empty()) gpu.name = "AMD GPU";
  // Sixteen digits, of which HIP makes the name that PyTorch tells.
  if (const auto id = SysText(place.device / "unique_id"); id && !id->empty()) gpu.uuid = *id;
  const std::optional<Bytes> total = SysBytesIn(place.device / "mem_info_vram_total");
  const std::optional<Bytes> used = SysBytesIn(place.device / "mem_info_vram_used");
  if (total && used) {
    gpu.memory =
        DriverMemory{.total = *total, .used = *used, .free = std::max<Bytes>(0, *total - *used)};
  } else {
    gpu.failure = fmt::format("{} cannot be read", (place.device / "mem_info_vram_used").string());
  }
  const std::optional<std::uint64_t> busy = SysNumberIn(place.device / "gpu_busy_percent");
  if (busy && *busy <= 100) gpu.busy = static_cast<int>(*busy);
  gpu.processes = ProcessesOf(place.id);
  return gpu;
}

std::vector<DriverProcess> AmdGpus::ProcessesOf(std::uint64_t id) const {
  std::vector<DriverProcess> processes;
  for (const auto& [pid, folder] : NumberedIn(root_ / "class/kfd/kfd/proc")) {
    const std::optional<Bytes> used = SysBytesIn(folder / fmt::format("vram_{}", id));
    // A process has a file for each GPU, also for those that it does not use.
    if (pid == 0 || pid > INT32_MAX || !used || *used == 0) continue;
    processes.push_back({.pid = static_cast<std::int64_t>(pid), .used = used});
  }
  return processes;
}

std::vector<DriverGpu> AmdGpus::Read() const {
  std::vector<DriverGpu> gpus;
  for (const Place& place : places_) gpus.push_back(Read(place, static_cast<int>(gpus.size())));
  return gpus;
}

}  // namespace plimsoll

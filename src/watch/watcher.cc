#include "watch/watcher.h"

#include <algorithm>
#include <chrono>
#include <tuple>

namespace plimsoll {
namespace {

bool HasProcess(const DriverGpu& gpu, std::int64_t pid) {
  return std::ranges::any_of(gpu.processes, [&](const DriverProcess& p) { return p.pid == pid; });
}

/// The GPU that a rank means, or null. A part of a GPU (MIG) has a name of its own: then the
/// driver's list of processes decides. The number is the last resort, since CUDA may count in
/// another order than the driver.
const DriverGpu* GpuOf(const LiveProcess& process, const LiveDevice& device,
                       const std::vector<DriverGpu>& gpus) {
  const DriverGpu* by_number = nullptr;
  const DriverGpu* by_process = nullptr;
  int holds = 0;
  for (const DriverGpu& gpu : gpus) {
    if (!device.uuid.empty() && gpu.uuid == "GPU-" + device.uuid) return &gpu;
    if (device.gpu == gpu.index) by_number = &gpu;
    if (HasProcess(gpu, process.pid)) {
      by_process = &gpu;
      ++holds;
    }
  }
  if (holds == 1 && process.devices.size() == 1) return by_process;
  return device.uuid.empty() ? by_number : nullptr;
}

void AddReport(const LiveProcess& process, const LiveDevice& device, double now, WatchedGpu& gpu) {
  auto found = std::ranges::find(gpu.processes, process.pid, &WatchedProcess::pid);
  if (found == gpu.processes.end()) {
    // In a container the driver counts processes as the host does, or tells none.
    gpu.processes.push_back({.pid = process.pid, .program = ProgramOf(process.pid)});
    found = gpu.processes.end() - 1;
  }
  found->reported = device;
  found->rank = process.rank;
  found->optimizer_steps = process.optimizer_steps;
  found->budget = process.budget;
  found->host = process.host;
  found->pinned = process.pinned;
  found->age = std::max(0.0, now - process.wrote);
}

WatchedGpu GpuAlone(const DriverGpu& gpu) {
  WatchedGpu watched{.index = gpu.index,
                     .name = gpu.name,
                     .uuid = gpu.uuid,
                     .memory = gpu.memory,
                     .failure = gpu.failure,
                     .busy = gpu.busy};
  for (const DriverProcess& process : gpu.processes) {
    watched.processes.push_back(
        {.pid = process.pid, .program = ProgramOf(process.pid), .used = process.used});
  }
  return watched;
}

/// Ranks first, in their order; then by what they use, the largest first.
void SortProcesses(WatchedGpu& gpu) {
  const auto key = [](const WatchedProcess& p) {
    return std::tuple(!p.rank, p.rank.value_or(0), -p.used.value_or(0), p.pid);
  };
  std::ranges::sort(gpu.processes, {}, key);
}

}  // namespace

WatchTime Now() {
  using std::chrono::duration;
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  const auto steady = std::chrono::steady_clock::now().time_since_epoch();
  return {.since_1970 = duration<double>(wall).count(), .steady = duration<double>(steady).count()};
}

WatchSample Watcher::Take(const WatchTime& now, const std::vector<DriverGpu>& gpus,
                          const std::vector<LiveProcess>& live) {
  WatchSample sample{.time = now.since_1970};
  for (const DriverGpu& gpu : gpus) sample.gpus.push_back(GpuAlone(gpu));
  for (const LiveProcess& process : live) {
    for (const LiveDevice& device : process.devices) {
      const DriverGpu* const gpu = GpuOf(process, device, gpus);
      if (gpu == nullptr) continue;
      AddReport(process, device, now.since_1970,
                sample.gpus[static_cast<std::size_t>(gpu - gpus.data())]);
    }
  }
  for (WatchedGpu& gpu : sample.gpus) SortProcesses(gpu);
  AddTrends(now.steady, sample.gpus);
  return sample;
}

std::vector<WatchedGpu> Watcher::Follow(const WatchTime& now, std::vector<WatchedGpu> gpus) {
  for (WatchedGpu& gpu : gpus) SortProcesses(gpu);
  AddTrends(now.steady, gpus);
  return gpus;
}

void Watcher::AddTrends(double steady, std::vector<WatchedGpu>& gpus) {
  std::map<ProcessKey, Series> still_there;
  for (WatchedGpu& gpu : gpus) {
    if (gpu.memory) {
      Series& series = gpus_[gpu.index];
      series.Add(steady, gpu.memory->used);
      gpu.trend = series.Fit();
      gpu.seconds_until_full = SecondsUntilFull(gpu.trend, gpu.memory->free);
    }
    for (WatchedProcess& process : gpu.processes) {
      const std::optional<Bytes> figure =
          process.used || !process.reported ? process.used : process.reported->reserved;
      const ProcessKey key(gpu.index, process.pid);
      Series& series = still_there[key] = std::move(processes_[key]);
      if (figure) series.Add(steady, *figure);
      process.trend = series.Fit();
      if (process.budget && process.reported) {
        process.seconds_until_budget =
            SecondsUntilFull(process.trend, *process.budget - process.reported->reserved);
      }
    }
  }
  processes_ = std::move(still_there);
}

}  // namespace plimsoll

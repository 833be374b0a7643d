#include <cmath>

#include "report/format/json_values.h"
#include "report/watch.h"

namespace plimsoll {
namespace {

const char* KindId(TrendKind kind) {
  switch (kind) {
    case TrendKind::kFlat:
      return "flat";
    case TrendKind::kRising:
      return "rising";
    case TrendKind::kFalling:
      return "falling";
    case TrendKind::kUneven:
      return "uneven";
    case TrendKind::kUnknown:
      break;
  }
  return "unknown";
}

Json TrendJson(const Trend& trend) {
  if (trend.kind == TrendKind::kUnknown) return nullptr;
  return {{"kind", KindId(trend.kind)},
          {"bytes_per_second", std::llround(trend.bytes_per_second)},
          {"over_seconds", std::llround(trend.seconds)}};
}

Json SecondsJson(const std::optional<double>& seconds) {
  return seconds ? Json(std::llround(*seconds)) : Json(nullptr);
}

Json ReportedJson(const WatchedProcess& process) {
  if (!process.reported) return nullptr;
  const LiveDevice& own = *process.reported;
  return {{"device", own.device},
          {"allocated", own.allocated},
          {"reserved", own.reserved},
          {"peak_allocated", own.peak_allocated},
          {"peak_reserved", own.peak_reserved},
          {"private_pools", OrNull(own.private_pools)},
          {"rejections", OrNull(own.rejections)},
          {"optimizer_steps", OrNull(process.optimizer_steps)},
          {"budget", OrNull(process.budget)},
          {"seconds_until_budget", SecondsJson(process.seconds_until_budget)},
          {"host_resident", process.host ? Json(process.host->resident) : Json(nullptr)},
          {"host_processes", process.host ? Json(process.host->processes) : Json(nullptr)},
          {"pinned", OrNull(process.pinned)},
          {"age_seconds", std::llround(process.age)}};
}

Json ProcessJson(const WatchedProcess& process) {
  return {{"pid", process.pid},
          {"program", process.program},
          {"rank", OrNull(process.rank)},
          {"used", OrNull(process.used)},
          {"reported", ReportedJson(process)},
          {"trend", TrendJson(process.trend)}};
}

Json GpuJson(const WatchedGpu& gpu) {
  const std::optional<DriverMemory>& memory = gpu.memory;
  Json processes = Json::array();
  for (const WatchedProcess& process : gpu.processes) processes.push_back(ProcessJson(process));
  return {{"index", gpu.index},
          {"name", gpu.name},
          {"uuid", gpu.uuid},
          {"failure", gpu.failure},
          {"total", memory ? Json(memory->total) : Json(nullptr)},
          {"used", memory ? Json(memory->used) : Json(nullptr)},
          {"free", memory ? Json(memory->free) : Json(nullptr)},
          {"driver", memory ? OrNull(memory->driver) : Json(nullptr)},
          {"busy_percent", OrNull(gpu.busy)},
          {"trend", TrendJson(gpu.trend)},
          {"seconds_until_full", SecondsJson(gpu.seconds_until_full)},
          {"processes", processes}};
}

Json GpusJson(const std::vector<WatchedGpu>& gpus) {
  Json list = Json::array();
  for (const WatchedGpu& gpu : gpus) list.push_back(GpuJson(gpu));
  return list;
}

}  // namespace

std::string WatchJson(const WatchSample& sample) {
  Json machines = Json::array();
  for (const WatchedMachine& machine : sample.machines) {
    machines.push_back(
        {{"name", machine.name}, {"failure", machine.failure}, {"gpus", GpusJson(machine.gpus)}});
  }
  return Dump({{"schema", "plimsoll.watch/1"},
               {"time_us", std::llround(sample.time * 1e6)},
               {"gpus", GpusJson(sample.gpus)},
               {"machines", machines}},
              kOneLine);
}

}  // namespace plimsoll

#include <fmt/format.h>

#include <iterator>

#include "base/printable.h"
#include "report/watch.h"

namespace plimsoll {
namespace {

std::string LabelValue(std::string_view text) {
  std::string escaped;
  for (const char c : Printable(text)) {
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string Labels(const WatchedGpu& gpu) {
  return fmt::format("gpu=\"{}\",uuid=\"{}\",name=\"{}\"", gpu.index, LabelValue(gpu.uuid),
                     LabelValue(gpu.name));
}

std::string Labels(const WatchedGpu& gpu, const WatchedProcess& process) {
  return fmt::format("gpu=\"{}\",uuid=\"{}\",pid=\"{}\",rank=\"{}\",program=\"{}\"", gpu.index,
                     LabelValue(gpu.uuid), process.pid,
                     process.rank ? fmt::format("{}", *process.rank) : "",
                     LabelValue(process.program));
}

using Value = std::optional<double>;

template <typename T>
Value Number(const std::optional<T>& value) {
  return value ? Value(static_cast<double>(*value)) : std::nullopt;
}

Value Rate(const Trend& trend) {
  const bool known = trend.kind != TrendKind::kUnknown && trend.kind != TrendKind::kUneven;
  return known ? Value(trend.bytes_per_second) : std::nullopt;
}

template <typename Of>
struct Metric {
  const char* name;
  const char* type;
  const char* help;
  Value (*value)(const Of&);
};

constexpr Metric<WatchedGpu> kOfGpus[] = {
    {"plimsoll_gpu_memory_total_bytes", "gauge", "Memory of the GPU.",
     [](const WatchedGpu& g) { return g.memory ? Value(g.memory->total) : Value(); }},
    {"plimsoll_gpu_memory_used_bytes", "gauge", "In use by all processes, as the driver says.",
     [](const WatchedGpu& g) { return g.memory ? Value(g.memory->used) : Value(); }},
    {"plimsoll_gpu_memory_free_bytes", "gauge", "Free, as the driver says.",
     [](const WatchedGpu& g) { return g.memory ? Value(g.memory->free) : Value(); }},
    {"plimsoll_gpu_busy_ratio", "gauge", "Part of the last moments in which a kernel ran.",
     [](const WatchedGpu& g) { return g.busy ? Value(*g.busy / 100.0) : Value(); }},
    {"plimsoll_gpu_memory_growth_bytes_per_second", "gauge",
     "Growth of the memory in use; absent unless it is flat or steady.",
     [](const WatchedGpu& g) { return Rate(g.trend); }},
    {"plimsoll_gpu_memory_seconds_until_full", "gauge",
     "Free memory divided by its growth; absent unless that is steady.",
     [](const WatchedGpu& g) { return g.seconds_until_full; }},
};

constexpr Metric<WatchedProcess> kOfProcesses[] = {
    {"plimsoll_process_memory_used_bytes", "gauge", "In use by the process, as the driver says.",
     [](const WatchedProcess& p) { return Number(p.used); }},
    {"plimsoll_process_memory_reserved_bytes", "gauge",
     "Held by PyTorch's allocator; of processes under plimsoll run.",
     [](const WatchedProcess& p) { return p.reported ? Value(p.reported->reserved) : Value(); }},
    {"plimsoll_process_memory_allocated_bytes", "gauge",
     "In tensors; of processes under plimsoll run.",
     [](const WatchedProcess& p) { return p.reported ? Value(p.reported->allocated) : Value(); }},
    {"plimsoll_process_memory_peak_allocated_bytes", "gauge",
     "The most in tensors so far; of processes under plimsoll run.",
     [](const WatchedProcess& p) {
       return p.reported ? Value(p.reported->peak_allocated) : Value();
     }},
    {"plimsoll_process_optimizer_steps_total", "counter",
     "Optimizer steps so far; of processes under plimsoll run.",
     [](const WatchedProcess& p) { return Number(p.optimizer_steps); }},
    {"plimsoll_process_report_age_seconds", "gauge",
     "How long ago the process reported; of processes under plimsoll run.",
     [](const WatchedProcess& p) { return p.reported ? Value(p.age) : Value(); }},
};

template <typename Of>
void Head(const Metric<Of>& metric, std::string& out) {
  out += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", metric.name, metric.help, metric.type);
}

void Line(const char* name, const std::string& labels, const Value& value, std::string& out) {
  if (value) out += fmt::format("{}{{{}}} {}\n", name, labels, *value);
}

}  // namespace

std::string WatchMetrics(const WatchSample& sample) {
  std::string out;
  for (const auto& metric : kOfGpus) {
    Head(metric, out);
    for (const WatchedGpu& gpu : sample.gpus) {
      Line(metric.name, Labels(gpu), metric.value(gpu), out);
    }
  }
  for (const auto& metric : kOfProcesses) {
    Head(metric, out);
    for (const WatchedGpu& gpu : sample.gpus) {
      for (const WatchedProcess& process : gpu.processes) {
        Line(metric.name, Labels(gpu, process), metric.value(process), out);
      }
    }
  }
  return out;
}

}  // namespace plimsoll

#include "watch/metrics_text.h"

#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace plimsoll {
namespace {

constexpr std::size_t kMostMetricGpus = 256;
constexpr std::size_t kMostMetricProcesses = 4096;
constexpr double kMostMetricBytes = 1125899906842624.0;  // 2^50
constexpr std::size_t kLongestLabel = 512;

/// One line taken apart: plimsoll_gpu_memory_used_bytes{gpu="0",name="NVIDIA H200"} 4.2e10
struct MetricLine {
  std::string_view name;
  std::map<std::string, std::string, std::less<>> labels;
  double value = 0;

  std::string_view Label(std::string_view key) const {
    const auto found = labels.find(key);
    return found != labels.end() ? std::string_view(found->second) : std::string_view();
  }
};

template <typename Number>
std::optional<Number> NumberFrom(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number);
  if (text.empty() || read.ec != std::errc() || read.ptr != end) return std::nullopt;
  return number;
}

/// The text between quotes, with its escapes undone; `rest` begins behind the first quote and ends
/// behind the last.
std::optional<std::string> Quoted(std::string_view& rest) {
  std::string text;
  while (!rest.empty() && text.size() <= kLongestLabel) {
    char c = rest.front();
    rest.remove_prefix(1);
    if (c == '"') return text;
    if (c == '\\') {
      if (rest.empty()) return std::nullopt;
      c = rest.front() == 'n' ? '\n' : rest.front();
      rest.remove_prefix(1);
    }
    text += c;
  }
  return std::nullopt;
}

std::optional<MetricLine> TakenApart(std::string_view line) {
  const std::size_t open = line.find('{');
  if (open == std::string_view::npos) return std::nullopt;
  MetricLine metric{.name = line.substr(0, open), .labels = {}};
  std::string_view rest = line.substr(open + 1);
  while (!rest.starts_with('}')) {
    const std::size_t equals = rest.find("=\"");
    if (equals == std::string_view::npos) return std::nullopt;
    std::string key(rest.substr(0, equals));
    rest.remove_prefix(equals + 2);
    std::optional<std::string> value = Quoted(rest);
    if (!value) return std::nullopt;
    metric.labels.insert_or_assign(std::move(key), *std::move(value));
    if (rest.starts_with(',')) rest.remove_prefix(1);
  }
  rest.remove_prefix(1);
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  const std::optional<double> value = NumberFrom<double>(rest.substr(0, rest.find(' ')));
  if (!value || !std::isfinite(*value)) return std::nullopt;
  metric.value = *value;
  return metric;
}

std::optional<Bytes> MetricBytes(double value) {
  if (value < 0 || value > kMostMetricBytes) return std::nullopt;
  return static_cast<Bytes>(std::llround(value));
}

DriverMemory& MemoryOf(WatchedGpu& gpu) {
  if (!gpu.memory) gpu.memory.emplace();
  return *gpu.memory;
}

LiveDevice& ReportOf(WatchedProcess& process, int gpu) {
  if (!process.reported) process.reported = LiveDevice{.device = gpu, .gpu = gpu};
  return *process.reported;
}

struct GpuFigure {
  std::string_view name;
  void (*set)(WatchedGpu&, Bytes);
};
constexpr auto kGpuFigures = std::to_array<GpuFigure>({
    {"plimsoll_gpu_memory_total_bytes", [](WatchedGpu& g, Bytes b) { MemoryOf(g).total = b; }},
    {"plimsoll_gpu_memory_used_bytes", [](WatchedGpu& g, Bytes b) { MemoryOf(g).used = b; }},
    {"plimsoll_gpu_memory_free_bytes", [](WatchedGpu& g, Bytes b) { MemoryOf(g).free = b; }},
});

struct ProcessFigure {
  std::string_view name;
  void (*set)(WatchedProcess&, int gpu, Bytes);
};
constexpr auto kProcessFigures = std::to_array<ProcessFigure>({
    {"plimsoll_process_memory_used_bytes", [](WatchedProcess& p, int, Bytes b) { p.used = b; }},
    {"plimsoll_process_memory_reserved_bytes",
     [](WatchedProcess& p, int gpu, Bytes b) { ReportOf(p, gpu).reserved = b; }},
    {"plimsoll_process_memory_allocated_bytes",
     [](WatchedProcess& p, int gpu, Bytes b) { ReportOf(p, gpu).allocated = b; }},
    {"plimsoll_process_memory_peak_allocated_bytes",
     [](WatchedProcess& p, int gpu, Bytes b) { ReportOf(p, gpu).peak_allocated = b; }},
    {"plimsoll_process_optimizer_steps_total",
     [](WatchedProcess& p, int, Bytes b) { p.optimizer_steps = b; }},
    {"plimsoll_process_report_age_seconds",
     [](WatchedProcess& p, int, Bytes b) { p.age = static_cast<double>(b); }},
});

class MetricsReader {
 public:
  void Take(const MetricLine& line) {
    const std::optional<int> index = NumberFrom<int>(line.Label("gpu"));
    const std::optional<Bytes> figure = MetricBytes(line.value);
    if (!index || *index < 0 || !figure) return;
    if (line.name == "plimsoll_gpu_busy_ratio" && line.value <= 1) {
      if (WatchedGpu* const gpu = GpuOf(*index, line)) {
        gpu->busy = static_cast<int>(std::lround(100 * line.value));
      }
    }
    for (const GpuFigure& known : kGpuFigures) {
      if (line.name != known.name) continue;
      if (WatchedGpu* const gpu = GpuOf(*index, line)) known.set(*gpu, *figure);
    }
    for (const ProcessFigure& known : kProcessFigures) {
      if (line.name != known.name) continue;
      if (WatchedProcess* const process = ProcessOf(*index, line)) {
        known.set(*process, *index, *figure);
      }
    }
  }

  std::vector<WatchedGpu> Gpus() {
    for (auto& [key, process] : processes_) {
      const auto gpu = gpus_.find(key.first);
      if (gpu != gpus_.end()) gpu->second.processes.push_back(std::move(process));
    }
    std::vector<WatchedGpu> gpus;
    for (auto& [index, gpu] : gpus_) gpus.push_back(std::move(gpu));
    return gpus;
  }

 private:
  WatchedGpu* GpuOf(int index, const MetricLine& line) {
    if (!gpus_.contains(index) && gpus_.size() >= kMostMetricGpus) return nullptr;
    WatchedGpu& gpu = gpus_[index];
    gpu.index = index;
    gpu.name = line.Label("name");
    gpu.uuid = line.Label("uuid");
    return &gpu;
  }

  WatchedProcess* ProcessOf(int index, const MetricLine& line) {
    const std::optional<std::int64_t> pid = NumberFrom<std::int64_t>(line.Label("pid"));
    if (!pid || *pid <= 0) return nullptr;
    const std::pair key(index, *pid);
    if (!processes_.contains(key) && processes_.size() >= kMostMetricProcesses) return nullptr;
    WatchedProcess& process = processes_[key];
    process.pid = *pid;
    process.program = line.Label("program");
    process.rank = NumberFrom<int>(line.Label("rank"));
    return &process;
  }

  std::map<int, WatchedGpu> gpus_;
  std::map<std::pair<int, std::int64_t>, WatchedProcess> processes_;
};

}  // namespace

Result<std::vector<WatchedGpu>> ReadMetrics(std::string_view text) {
  constexpr std::string_view kOurs = "plimsoll_";
  MetricsReader reader;
  bool any = false;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    any |= line.find(kOurs) != std::string_view::npos;
    if (!line.starts_with(kOurs)) continue;
    if (const std::optional<MetricLine> metric = TakenApart(line)) reader.Take(*metric);
  }
  if (any) return reader.Gpus();
  return Error{.message = "no figures of plimsoll watch are in the answer",
               .hint = "plimsoll watch --prometheus PORT serves them there"};
}

}  // namespace plimsoll

#include "readers/log_lines/log_tables.h"

#include <algorithm>
#include <array>

#include "base/text.h"

namespace plimsoll {
namespace {

using enum FigureKind;
using enum FigureSpan;

/// So many lines that are no rows end a table.
constexpr int kMostStrangers = 200;
constexpr std::size_t kMostColumns = 4096;
/// Releases of ultralytics differ in what a G is, 10^9 or 2^30, and do not say which.
constexpr double kEitherGigabyte = 0.0687;

/// Cells of a line of CSV, without quotation marks, which are ' by now, and without blanks around.
std::vector<std::string_view> CsvCells(std::string_view line) {
  std::vector<std::string_view> cells;
  std::size_t at = 0;
  while (at <= line.size() && cells.size() < kMostColumns) {
    while (at < line.size() && line[at] == ' ') ++at;
    if (at < line.size() && line[at] == '\'') {
      const std::size_t close = line.find('\'', at + 1);
      if (close == kNowhere) return {};
      cells.push_back(line.substr(at + 1, close - at - 1));
      at = line.find_first_not_of(' ', close + 1);
      // A dictionary has a colon there.
      if (at != kNowhere && line[at] != ',') return {};
    } else {
      const std::size_t comma = line.find(',', at);
      std::string_view cell = line.substr(at, comma == kNowhere ? kNowhere : comma - at);
      while (cell.ends_with(' ')) cell.remove_suffix(1);
      cells.push_back(cell);
      at = comma;
    }
    if (at == kNowhere) break;
    ++at;
  }
  return cells;
}

struct ExportMetric {
  /// What a heading ends with; letters in any case.
  std::string_view name;
  FigureKind counts;
  FigureSpan span;
  double factor;
};
constexpr auto kExportMetrics = std::to_array<ExportMetric>({
    {"memory.used [mib]", kDeviceUsed, kNow, kMebi},
    {"memory.used (mb)", kDeviceUsed, kNow, kMebi},
    {"memory.free [mib]", kDeviceFree, kNow, kMebi},
    {"memory.free (mb)", kDeviceFree, kNow, kMebi},
    {"memory.total [mib]", kDeviceTotal, kNow, kMebi},
    {"used_gpu_memory [mib]", kProcess, kNow, kMebi},
    {"memoryallocatedbytes", kDeviceUsed, kNow, kOnes},
    {"memoryallocated", kDeviceShare, kNow, 100},
    {"allocated_bytes.all.current", kTensors, kNow, kOnes},
    {"allocated_bytes.all.peak", kTensors, kSinceStart, kOnes},
    {"active_bytes.all.current", kActive, kNow, kOnes},
    {"active_bytes.all.peak", kActive, kSinceStart, kOnes},
    {"reserved_bytes.all.current", kReserved, kNow, kOnes},
    {"reserved_bytes.all.peak", kReserved, kSinceStart, kOnes},
    {"num_alloc_retries", kRetries, kSinceStart, kOnes},
    {"num_ooms", kOoms, kSinceStart, kOnes},
    {"memory/max_active(gib)", kActive, kSinceLine, kGibi},
    {"memory/max_active (gib)", kActive, kSinceLine, kGibi},
    {"memory/max_allocated (gib)", kTensors, kSinceLine, kGibi},
    {"memory/max_reserved(gib)", kReserved, kSinceLine, kGibi},
    {"memory/device_reserved (gib)", kReserved, kSinceLine, kGibi},
    {"gpu active mem (gib)", kActive, kSinceLine, kGibi},
    {"gpu reserved mem (gib)", kReserved, kSinceLine, kGibi},
    {"memory(gib)", kReserved, kSinceStart, kGibi},
    {"mem-allocated-bytes", kTensors, kNow, kOnes},
    {"mem-max-allocated-bytes", kTensors, kSinceStart, kOnes},
    {"mem-reserved-bytes", kReserved, kNow, kOnes},
    {"perf/max_memory_allocated_gb", kTensors, kSinceStart, kGibi},
    {"perf/max_memory_reserved_gb", kReserved, kSinceStart, kGibi},
    {"peak_memory_active", kActive, kSinceLine, kGibi},
    {"peak_memory_alloc", kTensors, kSinceLine, kGibi},
    {"peak_memory_reserved", kReserved, kSinceLine, kGibi},
    {".mem_gb", kDeviceUsed, kNow, kGibi},
});

/// TensorBoard writes every sign of a tag as _ into the name of a file.
std::string AsInFileName(std::string_view name) {
  std::string out;
  for (char c : name) out += IsLetter(c) || IsDigit(c) || c == '-' || c == '.' ? c : '_';
  return out;
}

const ExportMetric* MetricOf(std::string_view heading) {
  const std::string lower = Lower(heading);
  for (const ExportMetric& metric : kExportMetrics) {
    if (!lower.ends_with(metric.name)) continue;
    const std::size_t at = lower.size() - metric.name.size();
    const bool whole =
        at == 0 || !(IsLetter(lower[at - 1]) || lower[at - 1] == '_') || metric.name.front() == '.';
    if (whole) return &metric;
  }
  return nullptr;
}

/// The number of the card in "system.gpu.3.memoryAllocated", "gpu_id: 3/…", "node.0.gpu.3.mem_gb".
std::optional<int> DeviceIn(std::string_view heading) {
  const FigureLine line{.text = heading};
  for (std::string_view key : {"gpu.", "gpu_id: "}) {
    const auto device = CountBefore(line, key);
    if (device && *device < 100'000) return static_cast<int>(*device);
  }
  return {};
}

bool IsStepHeading(std::string_view heading) {
  const std::string lower = Lower(heading);
  return lower == "step" || lower == "_step" || lower == "global_step" ||
         lower.ends_with("/global_step");
}

}  // namespace

std::span<const std::string_view> TableHeadings() {
  static constexpr auto kHeadings = std::to_array<std::string_view>(
      {"memory.used", "memory.total", "memory.free", "used_gpu_memory", "memoryAllocated",
       "_bytes.all.", "num_alloc_retries", "memory/max_", "memory(GiB)", "mem-allocated-bytes",
       "mem-reserved-bytes", "perf/max_memory", "peak_memory_", "mem_gb", "Wall time,Step,Value",
       "GPU active mem (GiB)", "GPU reserved mem (GiB)", "# gpu ", "GPU_mem"});
  return kHeadings;
}

bool LogTable::Open(const FigureLine& line) {
  return OpenEpochs(line) || OpenMonitor(line) || OpenCsv(line);
}

/// "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size".
bool LogTable::OpenEpochs(const FigureLine& line) {
  const std::string_view first = LeadingWord(line.text);
  if (first != "Epoch" && first != "epoch") return false;
  const std::vector<std::string_view> words = WordsIn(line.text);
  if (words.size() < 3 || std::ranges::find(words, "GPU_mem") == words.end()) return false;
  kind_ = Kind::kEpochs;
  // YOLOv5's losses have an object of their own.
  decimal_gigabytes_ = std::ranges::find(words, "obj_loss") != words.end();
  program_ = decimal_gigabytes_ ? "YOLOv5" : "ultralytics";
  strangers_ = 0;
  return true;
}

/// "# gpu     pwr  gtemp     fb   bar1" of nvidia-smi dmon; `mem` there is no memory.
bool LogTable::OpenMonitor(const FigureLine& line) {
  // The mark stands by itself or is taken for the prefix of a line.
  const std::string_view first = LeadingWord(line.text);
  if (first != "#" && first != "gpu") return false;
  std::vector<std::string_view> words = WordsIn(line.text);
  if (!words.empty() && words[0] == "#") words.erase(words.begin());
  if (words.size() < 2 || words[0] != "gpu") return false;
  const auto fb = std::ranges::find(words, "fb");
  if (fb == words.end()) return false;
  columns_.clear();
  columns_.push_back({.index = static_cast<std::size_t>(fb - words.begin()),
                      .name = "fb",
                      .phase = {},
                      .run = {},
                      .counts = kDeviceUsed,
                      .span = kNow,
                      .factor = kMebi});
  width_ = words.size();
  kind_ = Kind::kMonitor;
  program_ = "nvidia-smi dmon";
  strangers_ = 0;
  return true;
}

std::optional<LogTable::TableColumn> LogTable::ColumnOf(std::string_view heading) const {
  std::string_view name = heading;
  TableColumn column;
  // "RUN - METRIC" of Weights & Biases.
  if (const std::size_t run = name.rfind(" - "); run != kNowhere) {
    column.run = name.substr(0, run);
    name.remove_prefix(run + 3);
  }
  if (name.ends_with("__MIN")) return {};
  const bool most = name.ends_with("__MAX");
  if (most) name.remove_suffix(5);
  if (Contains(name, "gpu.process.")) return {};
  const ExportMetric* const metric = MetricOf(name);
  if (metric == nullptr) return {};
  column.name = std::string(name) + (most ? " (max)" : "");
  column.counts = metric->counts;
  column.span = metric->span;
  column.factor = metric->factor;
  column.device = DeviceIn(name);
  // "DeviceStatsMonitor.on_train_batch_start/allocated_bytes.all.current" has the phase in it.
  constexpr std::string_view kMonitor = "DeviceStatsMonitor.";
  if (name.starts_with(kMonitor)) {
    const std::string_view rest = name.substr(kMonitor.size());
    const std::size_t end = rest.find_first_of("/-.");
    column.phase = rest.substr(0, end);
    column.name = rest.substr(end == kNowhere ? 0 : end + 1);
  }
  return column;
}

bool LogTable::OpenCsv(const FigureLine& line) {
  if (line.text.starts_with('{')) return false;
  const std::vector<std::string_view> cells = CsvCells(line.text);
  if (cells.size() < 2) return false;
  std::vector<TableColumn> columns;
  std::optional<std::size_t> step;
  std::optional<std::size_t> index;
  std::optional<std::size_t> process;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (cells[i].empty()) return false;
    if (!step && IsStepHeading(cells[i])) step = i;
    if (cells[i] == "index" || cells[i] == "gpu_index") index = i;
    if (cells[i] == "pid") process = i;
    if (auto column = ColumnOf(cells[i])) {
      column->index = i;
      columns.push_back(std::move(*column));
    }
  }
  const bool board = cells.size() == 3 && cells[0] == "Wall time" && cells[2] == "Value";
  if (board) {
    for (const ExportMetric& metric : kExportMetrics) {
      if (!Contains(Lower(AsInFileName(file_)), AsInFileName(metric.name))) continue;
      columns.push_back({.index = 2,
                         .name = std::string(metric.name),
                         .phase = {},
                         .run = {},
                         .counts = metric.counts,
                         .span = metric.span,
                         .factor = metric.factor,
                         .device = {}});
      break;
    }
  }
  if (columns.empty()) return false;
  columns_ = std::move(columns);
  width_ = cells.size();
  step_ = step;
  index_ = index;
  process_ = process;
  kind_ = Kind::kCsv;
  const bool weights_and_biases =
      Contains(line.text, "memoryAllocated") || !columns_.front().run.empty();
  program_ = board                                       ? "TensorBoard"
             : Contains(line.text, "DeviceStatsMonitor") ? "Lightning"
             : Contains(line.text, "gpu_id:")            ? "Lightning"
             : Contains(line.text, "_bytes.all.")        ? "Lightning"
             : weights_and_biases                        ? "Weights & Biases"
             : Contains(line.text, "memory.") || Contains(line.text, "used_gpu_memory")
                 ? "nvidia-smi"
                 : "CSV";
  strangers_ = 0;
  return true;
}

bool LogTable::ReadCsv(const FigureLine& line, FigureSink& sink) const {
  const std::vector<std::string_view> cells = CsvCells(line.text);
  if (cells.size() != width_) return false;
  FigurePlace place;
  const auto count = [&](const std::optional<std::size_t>& at) -> std::optional<std::int64_t> {
    if (!at) return {};
    const FigureLine cell{.text = cells[*at]};
    const auto number = SizedAt(cell, 0, "");
    if (!number || number->value < 0 || number->value > 1e15) return {};
    return static_cast<std::int64_t>(number->value);
  };
  place.step = count(step_);
  const std::optional<std::int64_t> index = count(index_);
  std::string process;
  if (const auto pid = count(process_)) process = "pid=" + std::to_string(*pid);
  bool any = false;
  for (const TableColumn& column : columns_) {
    const std::string_view text = cells[column.index];
    const bool last = column.index + 1 == width_ && !line.complete;
    const FigureLine cell{.text = text, .complete = !last};
    std::optional<Printed> value = SizedAt(cell, 0, "MiB");
    if (!value) value = SizedAt(cell, 0, "");
    if (!value || value->end != text.size()) continue;
    place.phase = column.phase;
    place.device = column.device               ? column.device
                   : index && *index < 100'000 ? std::optional(static_cast<int>(*index))
                                               : std::nullopt;
    place.process = process.empty() ? std::string_view(column.run) : std::string_view(process);
    sink.Put({column.name, column.counts, column.span}, *value, column.factor, place);
    any = true;
  }
  return any || std::ranges::all_of(columns_, [&](const TableColumn& column) {
           return cells[column.index].empty();
         });
}

bool LogTable::ReadMonitor(const FigureLine& line, FigureSink& sink) const {
  const std::vector<std::string_view> words = WordsIn(line.text);
  if (words.size() != width_) return false;
  const TableColumn& column = columns_.front();
  const FigureLine cell{.text = words[column.index],
                        .complete = line.complete || column.index + 1 < width_};
  const auto value = SizedAt(cell, 0, "");
  const auto device = SizedAt(FigureLine{.text = words[0]}, 0, "");
  if (!value || !device || device->value < 0 || device->value > 1e5) return false;
  sink.Put({column.name, column.counts, column.span}, *value, column.factor,
           {.device = static_cast<int>(device->value)});
  return true;
}

/// "     12/100      10.4G     1.204      0.98      1.02        155        640: 100%|…".
bool LogTable::ReadEpoch(const FigureLine& line, FigureSink& sink) const {
  const auto epoch = SizedAt(line, 0, "/");
  if (!epoch) return false;
  const auto all = NumberAt(line, epoch->end);
  if (!all) return false;
  auto size = SizedAt(line, all->end, "G ");
  if (!size || epoch->value < 0 || epoch->value > 1e9) return false;
  const double factor = decimal_gigabytes_ ? kGiga : kGibi;
  if (!decimal_gigabytes_) size->half = std::max(size->half, kEitherGigabyte * size->value);
  sink.Put({"GPU_mem", kReserved, kNow}, *size, factor,
           {.step = static_cast<std::int64_t>(epoch->value)});
  return true;
}

void LogTable::Read(const FigureLine& line, std::size_t number, FigureSink& sink) {
  sink.Begin(program_, line, number);
  const bool row = kind_ == Kind::kCsv       ? ReadCsv(line, sink)
                   : kind_ == Kind::kMonitor ? ReadMonitor(line, sink)
                                             : ReadEpoch(line, sink);
  if (row) {
    strangers_ = 0;
  } else if (kind_ != Kind::kEpochs && ++strangers_ > kMostStrangers) {
    kind_ = Kind::kNone;
  }
}

}  // namespace plimsoll

#include "readers/memory_summary/memory_summary.h"

#include <array>

namespace plimsoll {
namespace {

constexpr std::size_t kMostRows = 64;

// As they are printed, down the table. Those of counts come last.
constexpr std::array<std::string_view, 11> kMetrics = {
    "Allocated memory",     "Active memory",         "Requested memory",
    "GPU reserved memory",  "Non-releasable memory", "Allocations",
    "Active allocs",        "GPU reserved segments", "Non-releasable allocs",
    "Oversize allocations", "Oversize GPU segments"};
constexpr std::array<std::string_view, 2> kPools = {"from large pool", "from small pool"};

/// Lines between the rows: "|-----|", "|=====|".
void SkipRules(Scanner& scanner) {
  while (scanner.Literal("-") || scanner.Literal("=") || scanner.Literal("|")) {
  }
}

/// "   5767 MiB |": a size, or a bare count.
bool ReadCell(Scanner& scanner, Bytes& value, bool& counts) {
  std::optional<Bytes> size;
  if (scanner.Size(size)) {
    value = size.value_or(0);
  } else if (auto count = scanner.Integer()) {
    value = *count;
    counts = true;
  } else {
    return false;
  }
  return scanner.Literal("|");
}

/// The metric or the pool with which a row begins; `metric` is carried from row to row.
bool ReadLabel(Scanner& scanner, std::string_view& metric, SummaryRow& row) {
  for (std::string_view name : kMetrics) {
    if (!scanner.Literal(name)) continue;
    metric = name;
    row.metric = name;
    return true;
  }
  for (std::string_view pool : kPools) {
    if (metric.empty() || !scanner.Literal(pool)) continue;
    row.metric = metric;
    row.pool = pool;
    return true;
  }
  return false;
}

/// "| Allocated memory      | 496530 KiB |   5767 MiB |  61316 MiB |  60831 MiB |", or the same
/// metric "from large pool". Of a row that is cut, what is used now and at most suffices.
bool ReadRow(Scanner& scanner, std::string_view& metric, MemorySummary& summary) {
  SkipRules(scanner);
  SummaryRow row;
  if (!ReadLabel(scanner, metric, row) || !scanner.Literal("|")) return false;
  bool counts = false;
  std::size_t cells = 0;
  for (Bytes* cell : {&row.current, &row.peak, &row.total_allocated, &row.total_freed}) {
    bool count = false;
    if (!ReadCell(scanner, *cell, count)) break;
    // A size that is cut looks like a count; large counts are printed as "2166 K".
    if (cells > 0 && count && !counts) break;
    if (cells == 0) counts = count;
    ++cells;
  }
  if (cells >= 2) (counts ? summary.counts : summary.rows).push_back(std::move(row));
  return true;
}

/// Behind a row that is cut, the next one that is not.
bool SkipToRow(Scanner& scanner, std::string_view metric) {
  constexpr std::size_t kReach = 160;
  Scanner probe = scanner;
  for (std::size_t i = 0; i < kReach; ++i) {
    Scanner row = probe;
    SummaryRow ignored;
    std::string_view carried = metric;
    if (ReadLabel(row, carried, ignored) && row.Literal("|")) {
      scanner = probe;
      return true;
    }
    if (!probe.Skip()) return false;
  }
  return false;
}

}  // namespace

std::optional<MemorySummary> ReadSummary(Scanner& scanner) {
  MemorySummary summary;
  if (auto device = scanner.Integer()) summary.device = static_cast<int>(*device & 0xffff);
  SkipRules(scanner);
  if (scanner.Literal("CUDA OOMs:")) summary.ooms = scanner.Integer().value_or(0);
  SkipRules(scanner);
  if (scanner.Literal("cudaMalloc retries:")) summary.retries = scanner.Integer().value_or(0);
  SkipRules(scanner);
  scanner.Literal("Metric | Cur Usage | Peak Usage | Tot Alloc | Tot Freed |");
  std::string_view metric;
  for (std::size_t rows = 0; rows < kMostRows; ++rows) {
    if (ReadRow(scanner, metric, summary)) continue;
    if (metric.empty() || !SkipToRow(scanner, metric)) break;
  }
  if (summary.rows.empty()) return {};
  return summary;
}

}  // namespace plimsoll

#include "readers/memory_summary/memory_summary.h"

#include <array>
#include <cstring>
#include <optional>

#include "readers/error_text/error_text.h"
#include "readers/error_text/scanner.h"

namespace plimsoll {
namespace {

constexpr std::string_view kTitle = "memory summary, device ID";
constexpr std::size_t kMostTables = 10'000;
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

/// "| Allocated memory      | 496530 KiB |   5767 MiB |  61316 MiB |  60831 MiB |", or the same
/// metric "from large pool". `metric` is carried from row to row.
bool ReadRow(Scanner& scanner, std::string_view& metric, MemorySummary& summary) {
  SkipRules(scanner);
  SummaryRow row;
  for (std::string_view name : kMetrics) {
    if (scanner.Literal(name)) {
      metric = name;
      row.metric = name;
      break;
    }
  }
  if (row.metric.empty()) {
    for (std::string_view pool : kPools) {
      if (scanner.Literal(pool)) row.pool = pool;
    }
    if (row.pool.empty() || metric.empty()) return false;
    row.metric = metric;
  }
  bool counts = false;
  if (!scanner.Literal("|")) return false;
  for (Bytes* cell : {&row.current, &row.peak, &row.total_allocated, &row.total_freed}) {
    if (!ReadCell(scanner, *cell, counts)) return false;
  }
  (counts ? summary.counts : summary.rows).push_back(std::move(row));
  return true;
}

/// A table from behind its title on; none where no row follows.
std::optional<MemorySummary> ReadTable(Scanner& scanner) {
  MemorySummary summary;
  if (auto device = scanner.Integer()) summary.device = static_cast<int>(*device & 0xffff);
  SkipRules(scanner);
  if (scanner.Literal("CUDA OOMs:")) summary.ooms = scanner.Integer().value_or(0);
  SkipRules(scanner);
  if (scanner.Literal("cudaMalloc retries:")) summary.retries = scanner.Integer().value_or(0);
  SkipRules(scanner);
  scanner.Literal("Metric | Cur Usage | Peak Usage | Tot Alloc | Tot Freed |");
  std::string_view metric;
  for (std::size_t rows = 0; rows < kMostRows && ReadRow(scanner, metric, summary); ++rows) {
  }
  if (summary.rows.empty()) return {};
  return summary;
}

std::size_t FindTitle(std::string_view text, std::size_t from) {
  const void* found = memmem(text.data() + from, text.size() - from, kTitle.data(), kTitle.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

}  // namespace

std::vector<MemorySummary> ReadSummaries(std::string_view text) {
  std::vector<MemorySummary> summaries;
  std::size_t at = FindTitle(text, 0);
  while (at != std::string_view::npos && summaries.size() < kMostTables) {
    at += kTitle.size();
    Scanner scanner(text, at);
    if (auto summary = ReadTable(scanner)) {
      summaries.push_back(std::move(*summary));
      at = scanner.position();
    }
    at = FindTitle(text, at);
  }
  return summaries;
}

bool RecogniseMemorySummary(std::string_view bytes) {
  if (!LooksLikeText(bytes)) return false;
  std::string storage;
  const std::string_view text = AsUtf8(bytes, storage);
  for (std::size_t at = FindTitle(text, 0); at != std::string_view::npos;
       at = FindTitle(text, at)) {
    at += kTitle.size();
    Scanner scanner(text, at);
    if (ReadTable(scanner)) return true;
  }
  return false;
}

Result<Recording> ReadMemorySummary(const Input& input) { return ReadErrorText(input); }

}  // namespace plimsoll

// What one file held, whatever its format. A reader fills the parts that its format has.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "timeline/logged_series.h"
#include "timeline/message.h"
#include "timeline/timeline.h"

namespace plimsoll {

/// torch.cuda.memory_summary(): four figures a row, and counts below.
struct SummaryRow {
  std::string metric;  // "Allocated memory", "Active memory", "GPU reserved memory", …
  std::string pool;    // "", "from large pool", "from small pool"
  Bytes current = 0;
  Bytes peak = 0;
  Bytes total_allocated = 0;
  Bytes total_freed = 0;
};

struct MemorySummary {
  std::optional<int> device;
  std::int64_t ooms = 0;
  std::int64_t retries = 0;
  /// Rows of bytes. The figures are rounded to whole units, as printed.
  std::vector<SummaryRow> rows;
  /// Rows of counts (allocations, segments, …); the same fields, counting pieces.
  std::vector<SummaryRow> counts;
};

/// Memory over time as torch.profiler sees it: no stacks, but PyTorch's own categories.
struct CategorySample {
  TimeUs time_us = 0;
  /// Bytes by category, in the order of kProfilerCategories.
  std::vector<Bytes> bytes;
};
inline constexpr std::array<const char*, 8> kProfilerCategories = {
    "parameters",  "optimizer_state", "inputs",          "temporaries",
    "activations", "gradients",       "autograd_detail", "unattributed"};

struct CategoryTimeline {
  std::string device;
  std::vector<CategorySample> samples;
};

struct Recording {
  std::string file;
  /// "PyTorch memory snapshot (pickle, protocol 4)", "error text", …: for people.
  std::string format;
  /// One for each device that has events or segments.
  std::vector<Timeline> timelines;
  std::vector<OomMessage> messages;
  std::vector<MemorySummary> summaries;
  std::optional<CategoryTimeline> categories;
  /// The memory that a log tells, in the order in which each first appears.
  std::vector<LoggedSeries> logged;
  /// Records that could not be used, by reason: {"events without an action", 3}.
  std::map<std::string, std::int64_t> skipped;
};

}  // namespace plimsoll

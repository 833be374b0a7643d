// The answer of `plimsoll explain`: what report/ prints and docs/json.md describes. Plain structs;
// everything that is computed has been computed when one of these exists.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "timeline/timeline.h"

namespace plimsoll {

/// What an allocation is for.
enum class Category : std::uint8_t {
  kParameters,  // and buffers
  kGradients,
  kOptimizerState,
  kActivations,
  kInputs,
  kTemporaries,  // and workspaces
  kKept,         // grows with the steps
  kUnattributed,
};
inline constexpr std::size_t kCategoryCount = 8;
std::string_view CategoryName(Category category);

/// How sure a line is: from measured behaviour, from weaker signs, or by elimination.
enum class Confidence : std::uint8_t { kHigh, kMedium, kLow };
std::string_view ConfidenceName(Confidence confidence);

/// One line of an account: `what` is a category's name or one of rounding, fragmented, cached,
/// pending, outside, other_processes, free.
struct AccountLine {
  std::string what;
  Bytes bytes = 0;
  Confidence confidence = Confidence::kHigh;
  /// How that is known, in a few words.
  std::string because;
};

struct Instant {
  std::string kind = "peak";  // "oom", "peak" or "event"
  std::optional<std::int64_t> event;
  std::optional<TimeUs> time_us;
  std::optional<Bytes> allocated;
  std::optional<Bytes> reserved;
};

/// Memory that one place in the program holds at the instant.
struct Holder {
  std::string where;  // "train.py:57 in forward"
  Category category = Category::kUnattributed;
  Bytes bytes = 0;
  std::int64_t count = 0;
  /// The chain of modules, by file and line of their forwards; may be empty.
  std::string module;
  /// The user's frames, innermost first.
  std::vector<std::string> stack;
};

struct OomReport {
  std::optional<std::int64_t> event;
  std::optional<Bytes> requested;
  bool fatal = true;
  /// The program let go of memory and went on.
  bool caught = false;
  /// "capacity", "fragmentation", "limit", "too_large", "neighbour", "host", …
  std::string why;
  std::string where;
  std::optional<Bytes> device_free;
};

/// One training step found in a trace.
struct StepReport {
  std::int64_t first_event = 0;
  std::int64_t last_event = 0;
  Bytes peak_allocated = 0;
  Bytes peak_reserved = 0;
  /// Activations alive when the backward pass begins.
  Bytes activations = 0;
  /// Allocated when the step is over.
  Bytes end_allocated = 0;
  std::int64_t micro_batches = 1;
};

/// One device of one process.
struct RankReport {
  std::string file;
  std::string format;
  std::optional<int> rank;
  std::optional<int> device;
  std::string torch;  // the release that wrote the record, as far as it tells
  std::int64_t events = 0;
  std::optional<std::int64_t> steps;
  std::optional<Bytes> peak_allocated;
  std::optional<Bytes> peak_reserved;
  std::optional<Bytes> capacity;
  std::optional<Bytes> limit;
  Instant instant;
  /// "in the backward of step 3"; may be empty.
  std::string phase;
  std::vector<AccountLine> account;
  /// The most that each category ever held, in the order of Category (diagnose/sweep.h).
  std::optional<std::array<Bytes, kCategoryCount>> peaks;
  std::vector<Holder> holders;
  std::vector<OomReport> ooms;
  std::vector<StepReport> step_table;
  /// What the record does not hold or what was skipped, in sentences.
  std::vector<std::string> notes;
};

enum class Severity : std::uint8_t { kHigh, kMedium, kLow, kInfo };
std::string_view SeverityName(Severity severity);

struct Remedy {
  std::string change;
  std::optional<Bytes> saves;
  std::string costs;
  /// How the effect is known: "recorded", "replayed", "measured", "estimated", or "rule" where no
  /// figure can be given.
  std::string basis;
};

/// One cause, with its evidence. `id` is one of: capacity fragmentation limit leak crumbs warm_up
/// longest_batch eval_spike workspace_refused rank_imbalance stray_context other_process
/// outside_pytorch none.
struct Finding {
  std::string id;
  Severity severity = Severity::kInfo;
  std::optional<int> rank;
  std::string title;
  std::vector<std::string> evidence;
  std::vector<Remedy> remedies;
};

struct Explanation {
  std::string verdict;
  std::vector<RankReport> ranks;
  std::vector<Finding> findings;
  /// Causes that the figures exclude, in sentences (error texts).
  std::vector<std::string> ruled_out;
  /// The arithmetic of an error text, a line each: "9.50 GiB in use - 9.10 GiB reserved = …".
  std::vector<std::string> arithmetic;
  /// What to record next, in lines of Python or shell; empty where nothing more is needed.
  std::vector<std::string> record_next;
};

}  // namespace plimsoll

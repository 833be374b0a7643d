// The answer of `plimsoll explain`: what report/ prints and docs/json.md describes. Plain structs;
// everything that is computed has been computed when one of these exists.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "answer/account.h"
#include "answer/card.h"
#include "answer/category.h"
#include "answer/finding.h"
#include "answer/holder.h"
#include "answer/host.h"
#include "answer/log_report.h"
#include "base/bytes.h"
#include "timeline/stage.h"
#include "timeline/timeline.h"

namespace plimsoll {

/// Which moment an account is of.
enum class InstantKind : std::uint8_t { kPeak, kOutOfMemory, kEvent };
/// As JSON has it: "oom".
std::string_view InstantName(InstantKind kind);

struct Instant {
  InstantKind kind = InstantKind::kPeak;
  std::optional<std::int64_t> event;
  std::optional<TimeUs> time_us;
  std::optional<Bytes> allocated;
  std::optional<Bytes> reserved;
};

/// Why a request could not be served, in a word.
enum class OomCause : std::uint8_t {
  kUnknown,
  kCapacity,       // the device is full of this program's tensors
  kFragmentation,  // enough is free, in pieces that are too small
  kLimit,          // a limit on this process
  kTooLarge,       // one request exceeds the device
  kNeighbour,      // other processes hold the device
  kOutside,        // this process holds much outside the allocator
  kHost,           // the host's memory
  kAddressSpace,   // no range of addresses
  kBugInSize,      // no device has so much
};
/// As JSON has it: "too_large".
std::string_view OomCauseName(OomCause cause);

struct OomReport {
  std::optional<std::int64_t> event;
  std::optional<Bytes> requested;
  bool fatal = true;
  /// The program let go of memory and went on.
  bool caught = false;
  OomCause why = OomCause::kUnknown;
  /// The line that asked; of a backward, which has no stack of Python, the line of the forward
  /// whose tensor has the size of what was asked for.
  std::string where;
  bool in_backward = false;
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

/// All ranges that a program marked with one name.
struct MarkReport {
  std::string name;
  /// What that name says of it, as people choose names.
  Stage stage = Stage::kUnknown;
  /// How many other marks the first of them lies in.
  int depth = 0;
  std::int64_t times = 0;
  Bytes peak_allocated = 0;
  Bytes peak_reserved = 0;
  /// What the last of them left: allocated at its end less allocated at its beginning.
  Bytes left = 0;
};

/// A pool of a CUDA graph or of a torch.cuda.MemPool.
struct PoolReport {
  PoolId id;
  /// The most that it held from the driver, and that was in use of it.
  Bytes peak_reserved = 0;
  Bytes peak_allocated = 0;
  /// When the record was made.
  Bytes reserved = 0;
  Bytes allocated = 0;
  /// The line for which it got its first memory; "" where the record has none.
  std::string made_by;
};

/// All private pools of a device, and what they would be as one.
struct PoolsReport {
  /// The largest first.
  std::vector<PoolReport> pools;
  /// The sum of what each had in use at its highest, and the highest of what they had together.
  Bytes sum_of_peaks = 0;
  Bytes peak_of_sum = 0;
  /// The most that they held together.
  Bytes peak_reserved = 0;

  /// Pools that come and go are not all there at once: no more can be saved than was held.
  Bytes SavedByOne() const {
    return std::max<Bytes>(0, std::min(sum_of_peaks, peak_reserved) - peak_of_sum);
  }
};

/// Page-locked memory of the host.
struct HostPinnedReport {
  struct Place {
    std::string where;
    Bytes bytes = 0;
    std::int64_t count = 0;
  };
  std::int64_t events = 0;
  /// When the record was made: all, in use, and what was asked for of that where events tell it.
  Bytes reserved = 0;
  Bytes allocated = 0;
  std::optional<Bytes> requested;
  /// The most that was held and in use, as far as the events tell.
  Bytes peak_reserved = 0;
  Bytes peak_allocated = 0;
  /// Who has what is in use; the largest first.
  std::vector<Place> places;
};

/// One device of one process.
struct RankReport {
  std::string file;
  std::string format;
  std::optional<int> rank;
  std::optional<int> device;
  std::string torch;  // the release that wrote the record, as far as it tells
  /// Of a run that was predicted and not recorded: what was predicted.
  std::string prediction;
  /// The Python file that was run, as far as the record tells.
  std::string script;
  std::int64_t events = 0;
  std::optional<std::int64_t> steps;
  /// Steps that ended with their optimizer inside the record.
  std::int64_t complete_steps = 0;
  std::optional<Bytes> peak_allocated;
  std::optional<Bytes> peak_reserved;
  std::optional<Bytes> capacity;
  /// What this process may take of the device, by a limit of the program's own.
  std::optional<Bytes> limit;
  /// The same by `plimsoll run --budget`: it stands for the card in all that is said.
  std::optional<Bytes> budget;
  /// Whether nn.DataParallel is at work: one process, several devices.
  bool data_parallel = false;
  Instant instant;
  /// "in the backward of step 3"; may be empty.
  std::string phase;
  std::vector<AccountLine> account;
  /// What the account's lines are parts of.
  ShareBasis account_of = ShareBasis::kCapacity;
  /// The most that each category ever held, in the order of Category
  /// (diagnose/attribution/sweep.h).
  std::optional<std::array<Bytes, kCategoryCount>> peaks;
  std::vector<Holder> holders;
  std::vector<OomReport> ooms;
  std::vector<StepReport> step_table;
  std::vector<MarkReport> marks;
  /// By the expression that was asked for.
  std::string group_by;
  std::vector<HolderGroup> groups;
  /// None where all memory is in PyTorch's own pool.
  PoolsReport pools;
  std::optional<HostPinnedReport> pinned;
  /// When it asked for memory, where the record has a clock.
  std::optional<Presence> presence;
  /// Its name among the processes of its card; empty where it has the card for itself, or is a
  /// rank.
  std::string process;
  /// What the record does not hold or what was skipped, in sentences.
  std::vector<std::string> notes;

  /// Whether it died for lack of memory.
  bool RanOut() const { return instant.kind == InstantKind::kOutOfMemory; }
};

/// What to record so that more can be told.
struct RecordAdvice {
  /// `plimsoll run` records it: a Python program that trains with PyTorch on CUDA or ROCm.
  bool by_run = false;
  /// It trains, as far as its text shows, so that its step can be predicted.
  bool trains = false;
  /// The command that does, with the user's own job in it where that is known.
  std::string run = "plimsoll run -- python train.py";
  /// Lines of Python or shell for what it does not.
  std::vector<std::string> lines = {};

  bool empty() const { return !by_run && lines.empty(); }
  /// All of it as lines.
  std::vector<std::string> Lines() const;
};

struct Explanation {
  std::string verdict;
  std::vector<RankReport> ranks;
  /// The one of `ranks` that the verdict speaks of and that is shown whole.
  std::size_t shown = 0;
  std::vector<Finding> findings;
  /// What is to be known of remedies that have no figure (error texts); empty where all have one.
  std::string savings = {};
  /// Those that several of `ranks` share, which are then no ranks but processes.
  std::vector<CardReport> cards;
  /// Causes that the figures exclude, in sentences (error texts).
  std::vector<RuledOut> ruled_out;
  /// The arithmetic of an error text, a line each: "9.50 GiB in use - 9.10 GiB reserved = …".
  std::vector<std::string> arithmetic;
  /// Empty where nothing more is needed.
  RecordAdvice record_next;
  /// Of the job's processes, where `plimsoll run` sampled it.
  std::optional<HostReport> host = {};
  /// The memory that logs tell while a job runs.
  std::optional<LogReport> log = {};
};

}  // namespace plimsoll

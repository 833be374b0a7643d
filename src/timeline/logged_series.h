// The memory that a program printed while it ran: one series for each thing that is counted, by
// whom, in which phase. Figures of different meaning never share a series.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"

namespace plimsoll {

/// What a figure of a log counts.
enum class FigureKind : std::uint8_t {
  kTensors,      // allocated by PyTorch's allocator
  kActive,       // that, and blocks that another stream still uses
  kReserved,     // held by PyTorch's allocator
  kCached,       // reserved less tensors
  kOutside,      // of the device, outside PyTorch's allocator
  kDeviceUsed,   // of the device, by all
  kDeviceFree,   // of the device
  kDeviceTotal,  // the card's memory
  kDeviceShare,  // of the device, by all, in hundredths of a per cent; a count
  kNotTensors,   // the card's memory less the tensors' peak (fairseq's gb_free)
  kProcess,      // of one process, by the driver
  kWeights,      // what loading a model took
  kActivations,  // what a server's trial run took
  kKvCache,      // what a server has for keys and values; may be negative
  kGraphs,       // what CUDA graphs took
  kAllowed,      // the share of the card that a server may use
  kEngineFreed,  // what a sleeping engine let go of
  kEngineKept,   // what was in use on its card then
  kHostUsed,     // the host's memory
  kHostTotal,    // what there is of it
  kFormula,      // computed by a program, never measured
  kRetries,      // how often PyTorch emptied its cache to go on; a count
  kOoms,         // how often it ran out; a count
  kKvTokens,     // tokens that a cache has room for; a count
  kBatch,        // samples in one pass; a count
  kLength,       // tokens or pixels of a sample; a count
  kThroughput,   // tokens in a second; a count
};
/// As JSON has it: "device_used".
std::string_view FigureKindName(FigureKind counted);
/// For sentences: "in use on the card".
std::string_view FigureKindLabel(FigureKind counted);
/// Whether it is a number of bytes.
bool IsBytes(FigureKind counted);

/// Whether it says how much memory was used: not the card's size nor the job's batch.
bool TellsUse(FigureKind kind);

/// What time a figure is of.
enum class FigureSpan : std::uint8_t {
  kNow,         // when the line was printed
  kSinceLine,   // the most since the line before: it is reset each time
  kSinceStart,  // the most since the process began: it can only rise
  kChange,      // a difference of two moments
  kAboveEnd,    // the most of a phase, less what was held at its end
};
/// As JSON has it: "peak_since_line".
std::string_view FigureSpanName(FigureSpan span);
inline bool IsPeak(FigureSpan span) {
  return span == FigureSpan::kSinceLine || span == FigureSpan::kSinceStart;
}

/// The program of lines in words of nobody else's.
inline constexpr std::string_view kOwnProgram = "your own program";

struct LoggedPoint {
  static constexpr std::int64_t kNoStep = -1;

  std::int64_t step = kNoStep;
  /// Bytes, or a count.
  std::int64_t value = 0;
  /// Of the log, from 1.
  std::int64_t line = 0;

  bool has_step() const { return step != kNoStep; }
};

/// Who printed a figure, and of what.
struct FigureSource {
  std::string program;
  /// As the program calls it: "Max_MA".
  std::string field;
  /// What it was doing, in its own words: "after backward"; may be empty.
  std::string phase;
  std::optional<int> rank;
  std::optional<int> device;
  /// Where a prefix names the process and no rank: "WorkerDict pid=4711".
  std::string process;

  bool operator==(const FigureSource&) const = default;
};

/// All figures of one source. Of a long log points are thinned: of four neighbours the lowest and
/// the highest stay. First, last, lowest and highest are always known.
class LoggedSeries {
 public:
  static constexpr std::size_t kMostPoints = 2048;

  FigureSource source;
  FigureKind counts = FigureKind::kTensors;
  FigureSpan span = FigureSpan::kNow;
  /// Half a unit of the last printed digit, the coarsest of all.
  std::int64_t half_unit = 0;
  /// How many figures were read, thinned or not.
  std::int64_t count = 0;
  /// Lines of other processes that Ray folded into one of these: their figures are lost.
  std::int64_t folded = 0;
  /// Computed from a percentage and not printed.
  bool inferred = false;
  LoggedPoint first = {};
  LoggedPoint last = {};
  LoggedPoint lowest = {};
  LoggedPoint highest = {};
  /// How many had a step, and the least and the most of those.
  std::int64_t stepped = 0;
  std::int64_t first_step = LoggedPoint::kNoStep;
  std::int64_t last_step = LoggedPoint::kNoStep;
  std::vector<LoggedPoint> points = {};

  void Add(const LoggedPoint& point);
  /// A progress bar rewrites its line: of one step the highest stays.
  void AddRewritten(const LoggedPoint& point);
  /// Half as many points.
  void Thin();
};

}  // namespace plimsoll

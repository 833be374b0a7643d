// A run in the form in which any instant of it can be looked at: every block with its life, what it
// is for and who made it; what was held from the driver; where the steps are. Recorded runs and
// predicted ones both come to this, and pages and exports are made of it. Plain structs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/bytes.h"
#include "base/interner.h"
#include "timeline/stage.h"
#include "timeline/timeline.h"

namespace plimsoll {

/// A block that the program held for some time; alive in [made, released).
struct HistoryBlock {
  Address address = 0;
  /// What the program asked for, at most `size`.
  Bytes requested = 0;
  Bytes size = 0;
  Position made = kBefore;
  Position released = kNotYet;
  /// Later than `released` where another stream still used it.
  Position freed = kNotYet;
  /// Index into History::categories.
  std::uint8_t category = 0;
  /// Index into History::nodes.
  std::uint32_t node = 0;
  /// Indices into History::names: the line that answers for it, the chain of modules.
  std::uint32_t place = 0;
  std::uint32_t module = 0;
};

/// Memory held from the driver in [from, to), unchanged. A range that grows or shrinks ends, and
/// another begins.
struct HistorySpan {
  Address address = 0;
  Bytes size = 0;
  Position from = kBefore;
  Position to = kNotYet;
  bool expandable = false;
  std::uint16_t stream = 0;
  std::uint8_t pool = 0;
};

/// A frame as it was called from another: stacks that begin alike share their outer nodes.
struct HistoryNode {
  /// 0 is the root, its own parent.
  std::uint32_t parent = 0;
  /// Indices into History::names.
  std::uint32_t function = 0;
  std::uint32_t file = 0;
  std::int32_t line = 0;
};

/// A stretch of events, both ends included.
struct HistoryMark {
  Stage stage = Stage::kStep;
  Position first = 0;
  Position last = 0;
  /// From 1; those of a predicted run's later parts have no number.
  std::int32_t step = kAfterSteps;

  static constexpr std::int32_t kAfterSteps = 0;
};

/// A stretch of the job's life, both ends included: a part of a predicted run, or what a program
/// marked of a recorded one.
struct HistoryStretch {
  Stage stage = Stage::kUnknown;
  Position first = 0;
  Position last = 0;
  /// How many other stretches it lies in.
  std::int32_t depth = 0;
  /// As the program, or the record, has it; empty where the stage says all.
  std::string name = {};
  /// Its number among the parts of a prediction.
  std::optional<std::size_t> part = {};
};

/// Reserved memory as the record itself states it, from an event on.
struct HistoryReserved {
  Position from = 0;
  Bytes reserved = 0;
};

struct History {
  int device = 0;
  /// By event; all 0 where the record has no times.
  std::vector<TimeUs> times;
  /// In order of `made`.
  std::vector<HistoryBlock> blocks;
  /// In order of `from`. Empty where the record does not tell.
  std::vector<HistorySpan> spans;
  /// The figures instead of spans.
  std::vector<HistoryReserved> reserved;
  bool has_spans = false;
  std::vector<HistoryNode> nodes = {HistoryNode{}};
  /// Every distinct name once; 0 is "".
  std::vector<std::string> names = {""};
  /// In the order in which an account lists them.
  std::vector<std::string> categories;
  std::vector<HistoryMark> marks;
  /// In order of `first`, those that hold others before them.
  std::vector<HistoryStretch> stretches;
  /// Those that were too many.
  std::size_t stretches_left_out = 0;
};

/// Names and stacks, each once, while a History is being filled.
class HistoryNames {
 public:
  explicit HistoryNames(History& history) : history_(history) {}

  std::uint32_t Name(std::string_view text);
  /// The node of a frame called from `parent`.
  std::uint32_t Node(const HistoryNode& node);

 private:
  History& history_;
  StringTable strings_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::int32_t>, std::uint32_t>
      nodes_;
};

}  // namespace plimsoll

// How readers fill a StackTable: every distinct frame and stack once, names and stacks of a sane
// length, and no more of them than a file of that size can hold. A file can name one text in a
// million frames, and a frame in a million stacks.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "base/flat_map.h"
#include "base/hash.h"
#include "timeline/timeline.h"

namespace plimsoll {

/// A name without what is beyond `most` bytes, and "…" for that.
std::string CutName(std::string_view name, std::size_t most);

/// Names of C++ templates reach some kilobytes.
inline constexpr std::size_t kLongestName = 4096;
/// Python's own limit on recursion is 1000; the frames that matter are the inner ones.
inline constexpr std::size_t kDeepestStack = 1024;

/// What is left for the stacks of one file, all its timelines together.
class StackBudget {
 public:
  /// `share`: of a small file 1 (base/read_budget.h).
  explicit StackBudget(double share = 1);

  /// What was left out, by name, for Recording::skipped.
  void Report(std::map<std::string, std::int64_t>& skipped) const;

 private:
  friend class StackBuilder;
  std::size_t frames_;
  std::size_t text_;     // bytes of the names in frames
  std::size_t entries_;  // frames of stacks, each time that they stand in one
  std::size_t spelled_;  // bytes of the names in those
  std::int64_t cut_names_ = 0;
  std::int64_t lost_frames_ = 0;
};

class StackBuilder {
 public:
  StackBuilder(StackTable& table, StackBudget& budget) : table_(table), budget_(budget) {}

  /// The frame, with names that are not too long.
  FrameId AddFrame(Frame frame);
  /// The innermost frames of it, as many as there may be.
  StackId AddStack(std::span<const FrameId> frames);
  /// A name of the table, shortened if it is too long.
  StringId Shortened(StringId name);

 private:
  FrameId AddNewFrame(const Frame& frame);
  /// The innermost, and how long their names are together.
  std::span<const FrameId> AsManyAsMayBe(std::span<const FrameId> frames, std::size_t& text) const;
  std::size_t TextOf(FrameId id) const {
    const Frame& frame = table_.frame(id);
    return table_.strings[frame.function].size() + table_.strings[frame.file].size();
  }

  StackTable& table_;
  StackBudget& budget_;
  FlatMap frames_;  // by hash; where two have the same, the hash of that, and so on
  FlatMap stacks_;
  HashMap<std::uint32_t, StringId> shortened_;
  std::size_t longest_ = kLongestName;
  FrameId one_too_many_;
};

}  // namespace plimsoll

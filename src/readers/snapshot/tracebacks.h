// Stacks that a file holds as text: the tracebacks of Python's `traceback.format_stack`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "files/read_budget.h"
#include "readers/snapshot/words.h"
#include "timeline/stack_builder.h"

namespace plimsoll::snapshot {

/// Parses each text once: the same few stand in a file again and again.
class Tracebacks {
 public:
  Tracebacks(Words& words, const StringTable& strings, StackBuilder& stacks, ReadBudget& budget)
      : words_(words), strings_(strings), stacks_(stacks), budget_(budget) {}

  /// The frames that a text names, outermost first.
  std::span<const FrameId> FramesOf(StringId text);
  /// The stack that these texts are together, the innermost call last.
  StackId StackOf(std::span<const StringId> texts);

 private:
  Words& words_;
  const StringTable& strings_;
  StackBuilder& stacks_;
  ReadBudget& budget_;
  std::vector<FrameId> frames_;
  HashMap<std::uint32_t, std::pair<std::size_t, std::size_t>> known_;  // text to its frames
};

}  // namespace plimsoll::snapshot

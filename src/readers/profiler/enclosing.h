// Which operators and Python functions were running on the thread of each memory event.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "readers/profiler/trace_events.h"
#include "timeline/stack_builder.h"
#include "timeline/timeline.h"

namespace plimsoll {

/// A way down the calls; the nodes make a tree, so that common beginnings are kept once.
struct CallNode {
  std::uint32_t parent = 0;
  StringId name;  // in TraceContent::names
  bool python = false;
};

struct CallTree {
  static constexpr std::uint32_t kRoot = 0;
  std::vector<CallNode> nodes = {CallNode{}};
  /// For each of TraceContent::memory: the innermost call around it, or kRoot.
  std::vector<std::uint32_t> of_memory;
};

/// One sweep over time for each thread. Reorders content.spans.
CallTree FindEnclosingCalls(TraceContent& content);

/// "train.py(57): forward" is a frame of a file; anything else is a function without one.
struct CallName {
  std::string_view function;
  std::string_view file;
  std::int32_t line = 0;
};
CallName ParseCallName(std::string_view name, bool python);

/// Makes a timeline's stacks from the tree, each once.
class StackMaker {
 public:
  StackMaker(const CallTree& tree, const StringTable& names, Timeline& timeline,
             StackBudget& budget)
      : tree_(tree), names_(names), timeline_(timeline), builder_(timeline.stacks, budget) {}
  StackId StackOf(std::uint32_t node);

 private:
  FrameId FrameOf(const CallNode& node);

  const CallTree& tree_;
  const StringTable& names_;
  Timeline& timeline_;
  StackBuilder builder_;
  HashMap<std::uint32_t, StackId> stacks_;
  std::unordered_map<StringId, FrameId> frames_;
};

}  // namespace plimsoll

#include "readers/profiler/enclosing.h"

#include <algorithm>
#include <charconv>
#include <numeric>

namespace plimsoll {
namespace {

/// Of a deep stack the inner frames matter.
constexpr std::size_t kMostFrames = 256;

/// The calls that are running at one moment of the sweep, outermost first.
class RunningCalls {
 public:
  explicit RunningCalls(CallTree& tree) : tree_(tree) {}

  void Clear() { running_.clear(); }
  void Begin(const TraceSpan& span) {
    End(span.start);
    running_.push_back({&span, kUnmade});
  }
  /// The node of the innermost call at a time. Nodes are made only where memory events are: most
  /// calls have none.
  std::uint32_t NodeAt(double time) {
    while (!running_.empty() && running_.back().span->end < time) running_.pop_back();
    std::size_t made = running_.size();
    while (made > 0 && running_[made - 1].node == kUnmade) --made;
    std::uint32_t node = made > 0 ? running_[made - 1].node : CallTree::kRoot;
    for (; made < running_.size(); ++made) {
      node = Child(node, *running_[made].span);
      running_[made].node = node;
    }
    return node;
  }

 private:
  static constexpr std::uint32_t kUnmade = 0xffffffffu;
  struct Call {
    const TraceSpan* span;
    std::uint32_t node;
  };

  void End(double time) {
    while (!running_.empty() && running_.back().span->end <= time) running_.pop_back();
  }
  std::uint32_t Child(std::uint32_t parent, const TraceSpan& span) {
    const std::uint64_t key = (std::uint64_t{parent} << 32) | span.name.value;
    const auto next = static_cast<std::uint32_t>(tree_.nodes.size());
    const auto [found, is_new] = children_.try_emplace(key, next);
    if (is_new) {
      tree_.nodes.push_back({.parent = parent, .name = span.name, .python = span.python});
    }
    return found->second;
  }

  CallTree& tree_;
  std::vector<Call> running_;
  HashMap<std::uint64_t, std::uint32_t> children_;
};

}  // namespace

CallTree FindEnclosingCalls(TraceContent& content) {
  CallTree tree;
  const std::vector<TraceMemory>& memory = content.memory;
  tree.of_memory.assign(memory.size(), CallTree::kRoot);
  std::vector<TraceSpan>& spans = content.spans;
  // Of calls that begin together the longer is the outer one.
  std::sort(spans.begin(), spans.end(), [](const TraceSpan& a, const TraceSpan& b) {
    if (a.thread != b.thread) return a.thread < b.thread;
    if (a.start != b.start) return a.start < b.start;
    return a.end != b.end ? a.end > b.end : a.order < b.order;
  });
  std::vector<std::uint32_t> order(memory.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    if (memory[a].thread != memory[b].thread) return memory[a].thread < memory[b].thread;
    return memory[a].ts < memory[b].ts;
  });
  RunningCalls running(tree);
  std::size_t next = 0;
  std::uint32_t thread = 0;
  for (const std::uint32_t i : order) {
    const TraceMemory& event = memory[i];
    if (event.thread != thread) running.Clear();
    thread = event.thread;
    while (next < spans.size() && spans[next].thread < thread) ++next;
    for (; next < spans.size() && spans[next].thread == thread && spans[next].start <= event.ts;
         ++next) {
      running.Begin(spans[next]);
    }
    tree.of_memory[i] = running.NodeAt(event.ts);
  }
  return tree;
}

CallName ParseCallName(std::string_view name, bool python) {
  const CallName whole{.function = name, .file = {}};
  if (!python) return whole;
  const auto close = name.find("): ");
  if (close == std::string_view::npos) return whole;
  const auto open = name.rfind('(', close);
  if (open == std::string_view::npos || open == 0) return whole;
  CallName out{.function = name.substr(close + 3), .file = name.substr(0, open)};
  const char* const end = name.data() + close;
  const auto parsed = std::from_chars(name.data() + open + 1, end, out.line);
  if (parsed.ec != std::errc() || parsed.ptr != end || out.line < 0) return whole;
  return out;
}

FrameId StackMaker::FrameOf(const CallNode& node) {
  const auto [found, is_new] = frames_.try_emplace(node.name, FrameId());
  if (is_new) {
    const CallName name = ParseCallName(names_[node.name], node.python);
    StringTable& strings = timeline_.stacks.strings;
    found->second = builder_.AddFrame({.function = strings.Intern(name.function),
                                       .file = strings.Intern(name.file),
                                       .line = name.line});
  }
  return found->second;
}

StackId StackMaker::StackOf(std::uint32_t node) {
  if (node == CallTree::kRoot) return StackId();
  const auto [found, is_new] = stacks_.try_emplace(node, StackId());
  if (!is_new) return found->second;
  std::vector<FrameId> frames;
  for (; node != CallTree::kRoot && frames.size() < kMostFrames; node = tree_.nodes[node].parent) {
    frames.push_back(FrameOf(tree_.nodes[node]));
  }
  found->second = builder_.AddStack(frames);
  return found->second;
}

}  // namespace plimsoll

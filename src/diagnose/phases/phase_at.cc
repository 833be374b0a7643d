#include "diagnose/phases/phase_at.h"

#include <fmt/format.h>

namespace plimsoll {

namespace {

/// Where the frames say that a checkpoint is written or read.
std::string CheckpointAt(const Phases& p, Position at, std::size_t gap) {
  const std::uint16_t signs =
      p.stacks.of(p.timeline.events[static_cast<std::size_t>(at)].stack).signs;
  if ((signs & (kSignLoad | kSignSave)) == 0 || (signs & kSignEngine) != 0) return "";
  const char* doing = (signs & kSignLoad) != 0 ? "loading a checkpoint" : "saving a checkpoint";
  if (gap == 0) return std::string("while ") + doing;
  return fmt::format("after step {}, {}", p.backwards[gap - 1].step + 1, doing);
}

}  // namespace

std::string PhaseAt(const Phases& p, Position at) {
  if (at < 0 || p.timeline.events.empty()) return "";
  const std::size_t gap = p.GapOf(at);
  if (std::string checkpoint = CheckpointAt(p, at, gap); !checkpoint.empty()) return checkpoint;
  if (gap == p.backwards.size()) {
    const Event& event = p.timeline.events[static_cast<std::size_t>(at)];
    const std::uint16_t signs = p.stacks.of(event.stack).signs;
    if (p.backwards.empty()) {
      if (p.Trains()) return "before the first backward";
      return (signs & kSignModuleCall) != 0 ? "in a forward" : "";
    }
    if (at <= p.last_optimizer_end || (signs & kSignOptimizer) != 0)
      return fmt::format("in the optimizer of step {}", p.steps);
    if ((signs & kSignModuleCall) != 0 && p.IsTrainingCall(event.stack)) {
      return fmt::format("in the forward of step {}", p.steps + 1);
    }
    return fmt::format("after step {}", p.steps);
  }
  const Backward& b = p.backwards[gap];
  if (at >= b.start) return fmt::format("in the backward of step {}", b.step + 1);
  if (b.forward_start && at >= *b.forward_start) {
    return fmt::format("in the forward of step {}", b.step + 1);
  }
  if (gap == 0) return "before the first forward";
  const std::int32_t before = p.backwards[gap - 1].step + 1;
  if (at <= b.optimizer_end) return fmt::format("in the optimizer of step {}", before);
  if (before == b.step + 1) return fmt::format("in step {}", before);
  return fmt::format("between steps {} and {}", before, b.step + 1);
}

}  // namespace plimsoll

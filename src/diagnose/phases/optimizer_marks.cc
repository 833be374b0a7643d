#include "diagnose/phases/optimizer_marks.h"

#include <algorithm>
#include <string_view>

#include "diagnose/phases/phases.h"

namespace plimsoll {
namespace {

constexpr std::string_view kStepMark = "Optimizer.step#";
constexpr std::string_view kZeroMark = "Optimizer.zero_grad#";

}  // namespace

bool OptimizerMarks::Cover(Position position) const {
  const auto after = std::partition_point(
      steps.begin(), steps.end(),
      [&](const std::pair<Position, Position>& step) { return step.second < position; });
  return after != steps.end() && after->first <= position;
}

Position OptimizerMarks::FirstStart(Position after, Position before) const {
  Position first = kNotYet;
  for (const auto& [start, last] : steps) {
    if (start > after && start <= before) first = std::min(first, start);
  }
  return first;
}

Position OptimizerMarks::LastEnd(Position after, Position until) const {
  Position result = after;
  for (const auto& [start, last] : steps) {
    if (start > after && last < until) result = std::max(result, last);
  }
  return result;
}

OptimizerMarks FindOptimizerMarks(const Phases& p) {
  const Timeline& timeline = p.timeline;
  OptimizerMarks marks;
  if (timeline.annotations.empty() || timeline.events.empty()) return marks;
  const auto position_of = [&](TimeUs time) {
    const auto found = std::partition_point(timeline.events.begin(), timeline.events.end(),
                                            [&](const Event& e) { return e.time_us < time; });
    return static_cast<Position>(found - timeline.events.begin());
  };
  Position started = kBefore;
  for (const Annotation& mark : timeline.annotations) {
    const std::string_view name = timeline.stacks.strings[mark.name];
    const bool step = name.starts_with(kStepMark);
    if (!step && !name.starts_with(kZeroMark)) continue;
    marks.any = true;
    // A range from the first event at or after the start to the last one before the end.
    if (mark.start) {
      started = position_of(mark.time_us);
      continue;
    }
    const Position last = position_of(mark.time_us) - 1;
    if (started == kBefore || last >= p.end) continue;
    if (step) {
      marks.steps.emplace_back(started, last);
    } else if (!marks.steps.empty() && p.Between(marks.steps.back().second, started).empty()) {
      // zero_grad right after the step belongs to it; one just before the backward does not.
      marks.steps.back().second = std::max(marks.steps.back().second, last);
    }
    started = kBefore;
  }
  return marks;
}

}  // namespace plimsoll

// One pass over the events that adds up what each category holds: its peaks, the curve of allocated
// memory, and the figures of each step.
#pragma once

#include <array>
#include <vector>

#include "answer/explanation.h"
#include "diagnose/attribution/attribution.h"
#include "diagnose/phases/phases.h"

namespace plimsoll {

struct Sweep {
  /// Allocated bytes after each event.
  std::vector<Bytes> allocated;
  /// The most that each category held at once. Parameters are counted as whole blocks, as
  /// memory_allocated() shows after the model is on the device; a gradient or a state tensor at the
  /// block that a parameter of its size takes, so that the three compare (gradients once, Adam
  /// twice the parameters) whatever remainder a free block happened to leave at the moment; all
  /// else in bytes of tensors.
  std::array<Bytes, kCategoryCount> peaks{};
  std::vector<StepReport> steps;

  /// The most allocated after any event of [first, last]; 0 where that is empty.
  Bytes Highest(Position first, Position last) const;
};

Sweep SweepEvents(const Phases& phases, const Attribution& attribution);

}  // namespace plimsoll

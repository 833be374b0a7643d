// What a record itself says of the optimizer: ranges that PyTorch 2.5 and newer mark.
#pragma once

#include <utility>
#include <vector>

#include "timeline/timeline.h"

namespace plimsoll {

class Phases;

struct OptimizerMarks {
  /// Whether an optimizer was marked at all, be it only its zero_grad.
  bool any = false;
  /// Optimizer.step, from its first event to its last.
  std::vector<std::pair<Position, Position>> steps = {};

  /// Whether a position is part of a step.
  bool Cover(Position position) const;
  /// The first start of a step in (after, before]; kNotYet where there is none.
  Position FirstStart(Position after, Position before) const;
  /// The last end of a step in (after, until); `after` where there is none.
  Position LastEnd(Position after, Position until) const;
};

/// The marks up to where the behaviour of the program ends.
OptimizerMarks FindOptimizerMarks(const Phases& p);

}  // namespace plimsoll

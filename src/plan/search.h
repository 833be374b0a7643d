// The fastest ways to train a job within a card: every precision, form of the optimizer and setting
// of the allocator, with the batch in as few passes as fit, and with as few blocks checkpointed.
#pragma once

#include <functional>
#include <vector>

#include "plan/evaluate.h"

namespace plimsoll {

struct Plan {
  /// Those that fit for certain, the fastest first; one for each set of levers.
  std::vector<Outcome> ways;
  /// The job as it was captured, with all samples in one pass.
  Outcome as_captured;
  /// Where nothing fits: what comes closest.
  std::optional<Outcome> closest;
  /// The smallest card of the catalogue on which it would fit.
  std::optional<Gpu> smallest_card;
  std::size_t evaluations = 0;
};

Result<Plan> FindPlan(const PlanJob& job);

}  // namespace plimsoll

// Which of the outcomes that a search met are worth showing.
#pragma once

#include <vector>

#include "plan/search.h"

namespace plimsoll {

/// Fills the plan's ways, frontier and, where nothing fits for certain, what comes closest.
void ArrangeOutcomes(std::vector<Outcome> found, Plan& plan);

}  // namespace plimsoll

// Which of the ways that a search met are worth showing.
#pragma once

#include <vector>

#include "plan/search.h"

namespace plimsoll {

/// Fills the plan's ways, frontier and, where nothing fits for certain, what comes closest. Nothing
/// that the plan shows as fitting is faster than its first way: single levers that are, by less
/// than a lever is worth, go.
void ArrangeWays(std::vector<Way> found, Plan& plan);

}  // namespace plimsoll

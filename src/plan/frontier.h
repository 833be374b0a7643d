// Which of the ways that a search met are worth showing.
#pragma once

#include <vector>

#include "plan/search.h"

namespace plimsoll {

/// Fills the plan's ways, frontier and, where nothing fits for certain, what comes closest. Ways
/// are ranked by time; of those within 3 % the larger micro-batch comes first, and batch norm over
/// one sample comes last. Single levers that are faster than the first way are left out.
void ArrangeWays(const Job& job, std::vector<Way> found, Plan& plan);

/// Leaves those that no faster one beats in memory, the slowest first.
void KeepUnbeaten(std::vector<Way>& ways);

}  // namespace plimsoll

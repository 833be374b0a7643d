// Checks a packing, sharing no code with what makes it.
#pragma once

#include <optional>
#include <string>

#include "packing/problem.h"

namespace plimsoll {

/// What is wrong with the packing, in a sentence; nothing if it is valid: every buffer has an
/// offset that is not negative and suits its alignment, no two that are alive together overlap, and
/// the height is the largest offset + size.
std::optional<std::string> FindFault(const Problem& problem, const Packing& packing);

}  // namespace plimsoll

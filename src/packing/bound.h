// What no packing can get below.
#pragma once

#include "packing/problem.h"

namespace plimsoll {

/// The most bytes that are alive at once.
Bytes MostAlive(const Problem& problem);

}  // namespace plimsoll

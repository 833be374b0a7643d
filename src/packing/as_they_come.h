// A packing without foresight, in a time that hardly grows faster than the number of buffers: for
// problems that are too large for anything better.
#pragma once

#include "packing/problem.h"

namespace plimsoll {

/// Each buffer, when its life begins, gets the smallest free piece that holds it; what ends becomes
/// free, and neighbours are joined.
Packing PackAsTheyCome(const Problem& problem);

}  // namespace plimsoll

// Parts of a card: multi-instance GPUs (MIG).
#pragma once

#include <vector>

#include "hardware/gpu.h"

namespace plimsoll {

/// Behind the cards that are in it.
void AddSlices(std::vector<Gpu>& gpus);

}  // namespace plimsoll

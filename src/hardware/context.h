// What CUDA and its libraries take of a card besides PyTorch's memory.
#pragma once

#include "hardware/gpu.h"

namespace plimsoll {

/// `bare` and `context` of a card whose chip is known.
void SetContext(Gpu& gpu);

}  // namespace plimsoll

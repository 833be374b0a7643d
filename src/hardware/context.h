// What CUDA and its libraries take of a card besides PyTorch's memory.
#pragma once

#include "hardware/gpu.h"

namespace plimsoll {

/// `bare` and `context` of a card whose chip is known.
void SetContext(Gpu& gpu);
/// As it was measured on the user's own card, in bytes: as soon as CUDA is in use, and after a
/// small forward and backward. A job may load more code than that.
void SetMeasuredContext(Gpu& gpu, Bytes bare, Bytes training);

}  // namespace plimsoll

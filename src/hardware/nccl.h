// What NCCL takes of a device besides PyTorch's memory and the CUDA context.
#pragma once

#include <cstdint>

#include "hardware/gpu.h"

namespace plimsoll {

/// For one communicator over so many ranks on such cards; nothing for none.
ContextSize NcclTakes(std::int64_t ranks, const Gpu& gpu);

}  // namespace plimsoll

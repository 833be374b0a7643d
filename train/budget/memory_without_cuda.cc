#include "train/budget/memory.h"

namespace plimsoll::train {

DeviceMemory& CudaMemoryOf(c10::DeviceIndex) {
  TORCH_CHECK(
      false,
      "this build of plimsoll::train is without CUDA; build it with a LibTorch that has CUDA");
}

}  // namespace plimsoll::train

#include "train/planning/forward_work.h"

namespace plimsoll::train {

DeviceRates CudaRatesOf(c10::DeviceIndex) {
  TORCH_CHECK(
      false,
      "this build of plimsoll::train is without CUDA; build it with a LibTorch that has CUDA");
}

}  // namespace plimsoll::train

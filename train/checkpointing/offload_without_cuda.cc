#include "train/checkpointing/offload_copies.h"

namespace plimsoll::train {

std::unique_ptr<CopyQueues> CudaCopyQueues(c10::Device) {
  TORCH_CHECK(
      false,
      "this build of plimsoll::train is without CUDA; build it with a LibTorch that has CUDA");
}

}  // namespace plimsoll::train

// What a job is doing at a moment.
#pragma once

#include <cstdint>

namespace plimsoll {

enum class Stage : std::uint8_t {
  kUnknown,
  kLoad,      // weights or a checkpoint are read
  kBuild,     // the model goes to its device; DDP, FSDP or DeepSpeed are set up
  kTransfer,  // a batch goes to the device
  kForward,
  kLoss,  // logits, or the loss over them
  kBackward,
  kAllGather,  // sharded parameters are put together
  kOptimizer,  // the optimizer's step, clipping of gradients
  kEvaluation,
  kGeneration,
  kSave,
};

}  // namespace plimsoll

// What a job is doing at a moment: in a log, in a record, in a prediction.
#pragma once

#include <cstdint>
#include <string_view>

namespace plimsoll {

enum class Stage : std::uint8_t {
  kUnknown,
  kLoad,      // weights or a checkpoint are read
  kBuild,     // the model goes to its device; DDP, FSDP or DeepSpeed are set up
  kTransfer,  // a batch goes to the device
  kStep,      // a step of training, as a whole
  kForward,
  kLoss,  // logits, or the loss over them
  kBackward,
  kAllGather,  // sharded parameters are put together
  kOptimizer,  // the optimizer's step, clipping of gradients
  kEvaluation,
  kPrompt,  // a forward that fills the cache of what generates
  kGeneration,
  kSave,
};

/// As files and pages spell it: "inputs".
std::string_view StageName(Stage stage);

}  // namespace plimsoll

#include "train/checkpointing/capture.h"

namespace plimsoll::train {

std::optional<std::uint64_t> DrawnInCapture(c10::Device) { return std::nullopt; }

}  // namespace plimsoll::train

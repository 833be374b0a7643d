// Where PyTorch is installed, as the stacks of a record tell.
#pragma once

#include <string>

#include "timeline/timeline.h"

namespace plimsoll {

/// ".../site-packages/torch/"; "" where no frame is in a file that only PyTorch has.
std::string FindTorchFolder(const StackTable& stacks);

}  // namespace plimsoll

// Where PyTorch is installed, as the stacks of a record tell.
#pragma once

#include <string>
#include <string_view>

#include "timeline/timeline.h"

namespace plimsoll {

/// ".../site-packages/torch/"; "" where no frame is in a file that only PyTorch has.
/// A path of Windows as everybody else writes it: "C:/envs/torch/_tensor.py".
std::string ForwardSlashes(std::string_view path);

std::string FindTorchFolder(const StackTable& stacks);

}  // namespace plimsoll

#include "timeline/torch_folder.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace plimsoll {
namespace {

/// Files that only PyTorch has; the first one found tells.
constexpr std::array<std::string_view, 6> kTorchFiles = {
    "torch/nn/modules/module.py", "torch/_tensor.py",           "torch/optim/optimizer.py",
    "torch/autograd/graph.py",    "torch/autograd/function.py", "torch/utils/checkpoint.py"};

}  // namespace

std::string ForwardSlashes(std::string_view path) {
  std::string text(path);
  std::replace(text.begin(), text.end(), '\\', '/');
  return text;
}

std::string FindTorchFolder(const StackTable& stacks) {
  for (std::size_t f = 0; f < stacks.frame_count(); ++f) {
    const std::string_view recorded = stacks.strings[stacks.frame(FrameId(f)).file];
    const bool windows = recorded.find('\\') != std::string_view::npos;
    const std::string written = windows ? ForwardSlashes(recorded) : std::string();
    const std::string_view file = windows ? written : recorded;
    for (std::string_view known : kTorchFiles) {
      if (!file.ends_with(known)) continue;
      return std::string(file.substr(0, file.size() - known.size())) + "torch/";
    }
  }
  return "";
}

}  // namespace plimsoll

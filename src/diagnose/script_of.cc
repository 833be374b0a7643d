#include "diagnose/script_of.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace plimsoll {
namespace {

bool IsOfALibrary(std::string_view file) {
  constexpr std::array<std::string_view, 3> kFolders = {"site-packages/", "dist-packages/",
                                                        "/lib/python"};
  return std::ranges::any_of(kFolders, [&](std::string_view folder) {
    return file.find(folder) != std::string_view::npos;
  });
}

}  // namespace

std::string ScriptOf(const StackTable& stacks) {
  for (std::size_t i = 0; i < stacks.stack_count(); ++i) {
    const std::span<const FrameId> frames = stacks.stack(StackId(i));
    // The outermost is the last.
    for (auto id = frames.rbegin(); id != frames.rend(); ++id) {
      const Frame& frame = stacks.frame(*id);
      if (stacks.strings[frame.function] != "<module>") continue;
      const std::string_view file = stacks.strings[frame.file];
      if (file.ends_with(".py") && !IsOfALibrary(file)) return std::string(file);
      break;
    }
  }
  return {};
}

}  // namespace plimsoll

#include "readers/error_text/releases.h"

#include <fmt/format.h>

namespace plimsoll {
namespace {

std::string Name(int release) { return fmt::format("{}.{}", release / 100, release % 100); }

}  // namespace

std::string Releases::ToString() const {
  if (first == last) return "PyTorch " + Name(first);
  if (last == kNewest) return fmt::format("PyTorch {} or newer", Name(first));
  return fmt::format("PyTorch {} to {}", Name(first), Name(last));
}

}  // namespace plimsoll

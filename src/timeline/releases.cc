#include "timeline/releases.h"

#include <fmt/format.h>

namespace plimsoll {
namespace {

std::string Name(int release) { return fmt::format("{}.{}", release / 100, release % 100); }

}  // namespace

std::string Releases::ToString() const {
  if (first == last) return Name(first);
  if (last == kNewest) return fmt::format("{} or newer", Name(first));
  return fmt::format("{} to {}", Name(first), Name(last));
}

}  // namespace plimsoll

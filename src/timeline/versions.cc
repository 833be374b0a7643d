#include "timeline/versions.h"

#include <fmt/format.h>

namespace plimsoll {
namespace {

std::string Name(int version) { return fmt::format("{}.{}", version / 100, version % 100); }

}  // namespace

std::string TorchVersions::ToString() const {
  if (first == last) return Name(first);
  if (last == kNewest) return fmt::format("{} or newer", Name(first));
  return fmt::format("{} to {}", Name(first), Name(last));
}

}  // namespace plimsoll

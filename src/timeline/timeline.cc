#include "timeline/timeline.h"

#include <fmt/format.h>

#include "timeline/limits.h"

namespace plimsoll {

std::optional<std::string> Timeline::Validate() const {
  if (events.size() >= kNever) return "there are too many events to index";
  const auto known = [&](StackId id) { return !id.valid() || id.index() < stacks.stack_count(); };
  for (std::size_t i = 0; i < events.size(); ++i) {
    const Event& e = events[i];
    if (!known(e.stack)) return fmt::format("event {} has a stack that does not exist", i);
    if (e.stream >= streams.size()) return fmt::format("event {} has an unknown stream", i);
    if (e.pool >= pools.size()) return fmt::format("event {} has an unknown pool", i);
    if (e.size < 0) return fmt::format("event {} has a negative size", i);
    const bool ranged = e.action != Action::kOutOfMemory && e.action != Action::kOther;
    if (ranged && !IsDeviceRange(e.address, e.size)) {
      return fmt::format("event {} has a range that no device has", i);
    }
    if (e.time_us < -kLatestTime || e.time_us > kLatestTime) {
      return fmt::format("event {} has a time that is none", i);
    }
  }
  for (const Segment& s : segments) {
    if (s.first_block + s.block_count > blocks.size()) return "a segment has blocks past the end";
    if (s.stream >= streams.size() || s.pool >= pools.size()) {
      return "a segment has an unknown stream or pool";
    }
    if (s.size < 0) return "a segment has a negative size";
    if (!IsDeviceRange(s.address, s.size)) return "a segment has a range that no device has";
  }
  for (const Block& b : blocks) {
    if (b.size < 0 || b.requested < 0) return "a block has a negative size";
    if (!IsDeviceRange(b.address, b.size)) return "a block has a range that no device has";
    if (!known(b.stack)) return "a block has a stack that does not exist";
  }
  return std::nullopt;
}

}  // namespace plimsoll

#include "allocator/record/recorded_driver.h"

#include <algorithm>

namespace plimsoll {

RecordedDriver::RecordedDriver(const Timeline& timeline, const AllocatorRules& rules,
                               const std::vector<std::uint8_t>& pools)
    : events_(timeline.events), other_(timeline) {
  std::vector<std::size_t> unassigned;
  for (std::size_t i = 0; i < events_.size(); ++i) {
    const Event& e = events_[i];
    if (e.action == Action::kSegmentAlloc) segments_.push_back(i);
    if (e.action == Action::kSegmentMap) unassigned.push_back(i);
    if (e.action != Action::kAlloc && e.action != Action::kOutOfMemory) continue;
    // What was mapped since the last request was mapped for this one.
    const bool small = rules.Round(e.size) <= kSmallRequest;
    for (const std::size_t map : unassigned) {
      maps_[{events_[map].stream, pools[map], small}].push_back(map);
    }
    unassigned.clear();
  }
}

Address RecordedDriver::NewSegment(Bytes size) {
  const auto it = std::lower_bound(segments_.begin(), segments_.end(), next_);
  if (it == segments_.end()) return other_.NewSegment(size);
  next_ = *it + 1;
  return events_[*it].address;
}

Address RecordedDriver::NewReservation(const Reservation& wanted) {
  const auto of_pool = maps_.find({wanted.stream, wanted.pool, wanted.small});
  if (of_pool == maps_.end()) return other_.NewReservation(wanted);
  const std::vector<std::size_t>& maps = of_pool->second;
  const auto it = std::lower_bound(maps.begin(), maps.end(), next_);
  return it == maps.end() ? other_.NewReservation(wanted) : events_[*it].address;
}

}  // namespace plimsoll

#include "job/transforms/release.h"

#include <algorithm>
#include <map>

namespace plimsoll {

Variant FreeEarlier(const Variant& variant, const std::vector<const Release*>& releases) {
  // Two releases may free the same: the earlier one comes first.
  std::map<Storage, std::size_t> freed_before;
  for (const Release* release : releases) {
    for (const Release::Free& free : release->frees) {
      const auto at = freed_before.emplace(free.storage, free.event).first;
      at->second = std::min(at->second, free.event);
    }
  }
  std::multimap<std::size_t, Storage> frees_at;
  for (const auto& [storage, event] : freed_before) frees_at.emplace(event, storage);
  Variant changed{.precision = variant.precision,
                  .model_tensors = variant.model_tensors,
                  .calls = variant.calls,
                  .events = {},
                  .storages = variant.storages,
                  .later = variant.later};
  for (std::size_t i = 0; i <= variant.events.size(); ++i) {
    const auto [begin, end] = frees_at.equal_range(i);
    for (auto at = begin; at != end; ++at) {
      changed.events.push_back({.kind = JobEvent::Kind::kFree, .index = at->second});
    }
    if (i == variant.events.size()) break;
    const JobEvent& event = variant.events[i];
    const bool moved =
        event.kind == JobEvent::Kind::kFree && freed_before.contains(Storage{event.index});
    if (!moved) changed.events.push_back(event);
  }
  return changed;
}

}  // namespace plimsoll

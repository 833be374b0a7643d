#include "job/transforms/release.h"

#include <algorithm>
#include <map>
#include <set>

namespace plimsoll {
namespace {

/// A storage, and by what it can be known again in another step.
struct StepMade {
  Storage storage = 0;
  std::pair<StringId, StringId> by;
};

/// What the events from `begin` to `end` make, in order.
std::vector<StepMade> MadeBetween(const std::vector<CallRecord>& calls,
                                  const std::vector<JobEvent>& events, std::size_t begin,
                                  std::size_t end) {
  std::vector<StepMade> made;
  for (std::size_t i = begin; i < end; ++i) {
    if (events[i].kind != JobEvent::Kind::kCall) continue;
    const CallRecord& call = calls[events[i].index];
    for (const NewStorage& fresh : call.fresh) {
      made.push_back({.storage = fresh.storage, .by = {call.op, call.where}});
    }
  }
  return made;
}

std::set<Storage> FreedBetween(const std::vector<JobEvent>& events, std::size_t begin,
                               std::size_t end) {
  std::set<Storage> freed;
  for (std::size_t i = begin; i < end; ++i) {
    if (events[i].kind == JobEvent::Kind::kFree) freed.insert(Storage{events[i].index});
  }
  return freed;
}

/// Where each step begins, and the end of the last.
std::vector<std::size_t> StepBounds(const Variant& variant) {
  std::vector<std::size_t> bounds;
  for (std::size_t i = 0; i < variant.events.size(); ++i) {
    if (variant.events[i].kind == JobEvent::Kind::kStep) bounds.push_back(i);
  }
  bounds.push_back(variant.events.size());
  return bounds;
}

}  // namespace

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

Variant KeepNothingOfSteps(const Variant& variant) {
  const std::vector<std::size_t> bounds = StepBounds(variant);
  Release release;
  if (bounds.size() < 4) return variant;
  // Of the steps between the first and the last it is certain what they keep. The first also makes
  // what stays for good, and of the last nobody saw what the next lets go.
  const std::size_t last = bounds.size() - 2;
  const auto kept_of = [&](std::size_t step) {
    const std::size_t seen = std::min(step + 2, last + 1);
    const std::set<Storage> freed = FreedBetween(variant.events, bounds[step], bounds[seen]);
    std::vector<StepMade> kept =
        MadeBetween(variant.calls, variant.events, bounds[step], bounds[step + 1]);
    std::erase_if(kept, [&](const StepMade& made) { return freed.contains(made.storage); });
    return kept;
  };
  std::multiset<std::pair<StringId, StringId>> known;
  for (const StepMade& made : kept_of(1)) known.insert(made.by);
  for (std::size_t step = 0; step <= last; ++step) {
    std::multiset<std::pair<StringId, StringId>> left = known;
    for (const StepMade& made : kept_of(step)) {
      const auto at = left.find(made.by);
      if (at == left.end()) continue;
      left.erase(at);
      release.frees.push_back({.event = bounds[step + 1], .storage = made.storage});
    }
  }
  Variant changed = FreeEarlier(variant, {&release});
  std::set<Storage> gone;
  for (const Release::Free& free : release.frees) gone.insert(free.storage);
  // What the model keeps in a step it keeps in an evaluation, too.
  for (Part& part : changed.later) {
    std::erase_if(part.events, [&](const JobEvent& event) {
      return event.kind == JobEvent::Kind::kFree && gone.contains(Storage{event.index});
    });
    const std::set<Storage> freed = FreedBetween(part.events, 0, part.events.size());
    std::multiset<std::pair<StringId, StringId>> left = known;
    for (const StepMade& made : MadeBetween(variant.calls, part.events, 0, part.events.size())) {
      const auto at = left.find(made.by);
      if (at == left.end() || freed.contains(made.storage)) continue;
      left.erase(at);
      part.events.push_back({.kind = JobEvent::Kind::kFree, .index = made.storage});
      gone.insert(made.storage);
    }
  }
  return changed;
}

}  // namespace plimsoll

#include "job/transforms/evaluation.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace plimsoll {
namespace {

bool IsEvaluation(const Part& part) { return part.stage == Stage::kEvaluation; }
/// One batch of a loop, and not what is done with all of them.
bool IsBatch(const Part& part) { return IsEvaluation(part) && part.batches.least() <= 1; }

const CallRecord* CallAt(const Variant& variant, const JobEvent& event) {
  return event.kind == JobEvent::Kind::kCall ? &variant.calls[event.index] : nullptr;
}

void AddTensors(const Argument& argument, std::vector<TensorUse>& found) {
  if (const auto* tensor = std::get_if<TensorUse>(&argument.is)) {
    found.push_back(*tensor);
  } else if (const auto* list = std::get_if<Argument::List>(&argument.is)) {
    for (const Argument& element : *list) AddTensors(element, found);
  }
}

std::vector<TensorUse> TensorsOf(const CallRecord& call) {
  std::vector<TensorUse> found;
  for (const Argument& argument : call.args) AddTensors(argument, found);
  for (const auto& [name, argument] : call.kwargs) AddTensors(argument, found);
  return found;
}

/// The storages that a call gets; kElsewhere for those of the host.
std::vector<Storage> UsedBy(const CallRecord& call) {
  std::vector<Storage> found;
  for (const TensorUse& tensor : TensorsOf(call)) found.push_back(tensor.storage);
  return found;
}

std::set<Storage> FreedIn(const Part& part) {
  std::set<Storage> freed;
  for (const JobEvent& event : part.events) {
    if (event.kind == JobEvent::Kind::kFree) freed.insert(Storage{event.index});
  }
  return freed;
}

std::vector<Storage> MadeInPart(const Variant& variant, const Part& part) {
  std::vector<Storage> made;
  for (const JobEvent& event : part.events) {
    const CallRecord* call = CallAt(variant, event);
    if (call == nullptr) continue;
    for (const NewStorage& fresh : call->fresh) made.push_back(fresh.storage);
  }
  return made;
}

bool HasGraph(const Variant& variant, const Part& part) {
  bool graph = false;
  std::set<Storage> made;
  for (const JobEvent& event : part.events) {
    if (event.kind == JobEvent::Kind::kStage && event.stage == Stage::kBackward) return false;
    const CallRecord* call = CallAt(variant, event);
    if (call == nullptr) continue;
    // Parameters and views of them want a gradient under no_grad, too; what is computed of them
    // does not.
    graph |= std::ranges::any_of(TensorsOf(*call), [&](const TensorUse& tensor) {
      return tensor.needs_grad && !tensor.view && made.contains(tensor.storage);
    });
    for (const NewStorage& fresh : call->fresh) made.insert(fresh.storage);
  }
  return graph;
}

/// The part that does the same for the next batch of the loop: a loop may fetch each batch in a
/// part of its own. Nothing behind the last one.
std::optional<std::size_t> NextRound(const Variant& variant, std::size_t part) {
  const std::size_t made = MadeInPart(variant, variant.later[part]).size();
  for (std::size_t i = part + 1; i < variant.later.size() && IsBatch(variant.later[i]); ++i) {
    if (MadeInPart(variant, variant.later[i]).size() == made) return i;
  }
  return std::nullopt;
}

/// Of a batch: what was made in it and is there when the next has run. Of the last nobody saw that:
/// it is what the one before it has in the same place.
std::set<Storage> KeptOfBatches(const Variant& variant) {
  std::set<Storage> kept;
  // By the number of storages that a part makes.
  std::map<std::size_t, std::set<std::size_t>> places;
  for (std::size_t i = 0; i < variant.later.size(); ++i) {
    const Part& part = variant.later[i];
    if (!IsBatch(part)) {
      places.clear();
      continue;
    }
    const std::vector<Storage> made = MadeInPart(variant, part);
    const std::optional<std::size_t> next = NextRound(variant, i);
    std::set<Storage> freed = FreedIn(part);
    for (std::size_t k = i + 1; next && k <= *next; ++k) freed.merge(FreedIn(variant.later[k]));
    const std::set<std::size_t> before = std::exchange(places[made.size()], {});
    for (std::size_t place = 0; place < made.size(); ++place) {
      if (freed.contains(made[place]) || (!next && !before.contains(place))) continue;
      kept.insert(made[place]);
      places[made.size()].insert(place);
    }
  }
  return kept;
}

JobEvent FreeOf(Storage storage) { return {.kind = JobEvent::Kind::kFree, .index = storage}; }

/// Each storage after the last call that gets it, or that made it.
void FreeAfterUse(const Variant& variant, Part& part, const std::set<Storage>& storages) {
  std::map<Storage, std::size_t> last;
  for (std::size_t i = 0; i < part.events.size(); ++i) {
    const CallRecord* call = CallAt(variant, part.events[i]);
    if (call == nullptr) continue;
    for (const Storage used : UsedBy(*call)) {
      if (storages.contains(used)) last[used] = i;
    }
    for (const NewStorage& fresh : call->fresh) {
      if (storages.contains(fresh.storage)) last[fresh.storage] = i;
    }
  }
  std::multimap<std::size_t, Storage> frees;
  for (const auto& [storage, at] : last) frees.emplace(at, storage);
  std::vector<JobEvent> events;
  for (std::size_t i = 0; i < part.events.size(); ++i) {
    events.push_back(part.events[i]);
    const auto [begin, end] = frees.equal_range(i);
    for (auto at = begin; at != end; ++at) events.push_back(FreeOf(at->second));
  }
  part.events = std::move(events);
}

/// What a batch leaves to its graph.
struct GraphOfBatch {
  /// What the model gives: a variable of the loop may have it until the next batch has one.
  std::set<Storage> outputs = {};
  /// All else that was computed.
  std::set<Storage> inner = {};
};

GraphOfBatch FindGraph(const Variant& variant, const Part& part) {
  GraphOfBatch graph;
  std::set<Storage> of_modules;
  Storage last = kElsewhere;
  for (const JobEvent& event : part.events) {
    const CallRecord* call = CallAt(variant, event);
    if (call == nullptr) continue;
    const bool inside = call->module.valid();
    for (const Storage used : UsedBy(*call)) {
      if (!inside && of_modules.contains(used)) graph.outputs.insert(used);
    }
    const bool computed = std::ranges::any_of(TensorsOf(*call), &TensorUse::needs_grad);
    for (const NewStorage& fresh : call->fresh) {
      last = fresh.storage;
      if (inside) of_modules.insert(last);
      if (inside || computed) graph.inner.insert(last);
    }
  }
  // A number that is added up over the batches, or what the model gives where nothing uses it.
  graph.inner.erase(last);
  for (const Storage output : graph.outputs) graph.inner.erase(output);
  if (of_modules.contains(last)) graph.outputs.insert(last);
  return graph;
}

}  // namespace

bool EvaluationHasGraph(const Variant& variant) {
  return std::ranges::any_of(
      variant.later, [&](const Part& part) { return IsBatch(part) && HasGraph(variant, part); });
}

Variant EvaluateWithoutGraph(const Variant& variant) {
  Variant changed = variant;
  changed.releases.clear();
  std::set<Storage> gone;
  bool outlived = false;
  for (std::size_t i = 0; i < changed.later.size(); ++i) {
    Part& part = changed.later[i];
    std::erase_if(part.events, [&](const JobEvent& event) {
      return event.kind == JobEvent::Kind::kFree && gone.contains(Storage{event.index});
    });
    if (!IsBatch(part) || !HasGraph(variant, part)) continue;
    GraphOfBatch graph = FindGraph(variant, part);
    std::erase_if(part.events, [&](const JobEvent& event) {
      return event.kind == JobEvent::Kind::kFree && graph.inner.contains(Storage{event.index});
    });
    FreeAfterUse(variant, part, graph.inner);
    // The graph may be kept over many batches, by a loss that is added up: then the outputs are.
    const bool followed = i + 1 < changed.later.size() && IsBatch(changed.later[i + 1]);
    std::set<Storage> freed = FreedIn(part);
    if (followed) freed.merge(FreedIn(changed.later[i + 1]));
    for (const Storage output : graph.outputs) {
      if (freed.contains(output) || (!followed && !outlived)) continue;
      part.events.push_back(FreeOf(output));
      gone.insert(output);
      outlived = true;
    }
    gone.merge(graph.inner);
  }
  return changed;
}

bool EvaluationKeepsOutputs(const Variant& variant) {
  return !EvaluationHasGraph(variant) && !KeptOfBatches(variant).empty();
}

Variant KeepOutputsOnHost(const Variant& variant) {
  Variant changed = variant;
  changed.releases.clear();
  if (!EvaluationKeepsOutputs(variant)) return changed;
  const std::set<Storage> kept = KeptOfBatches(variant);
  std::set<Storage> on_host;
  for (Part& part : changed.later) {
    std::vector<JobEvent> events;
    for (const JobEvent& event : part.events) {
      if (event.kind == JobEvent::Kind::kFree && on_host.contains(Storage{event.index})) continue;
      const CallRecord* call = CallAt(variant, event);
      if (call != nullptr) {
        const std::vector<Storage> used = UsedBy(*call);
        const auto is_there = [&](Storage one) { return on_host.contains(one); };
        const auto is_host = [&](Storage one) { return one == kElsewhere || is_there(one); };
        if (std::ranges::any_of(used, is_there) && std::ranges::all_of(used, is_host)) {
          for (const NewStorage& fresh : call->fresh) on_host.insert(fresh.storage);
          continue;
        }
      }
      events.push_back(event);
    }
    part.events = std::move(events);
    if (!IsBatch(part)) continue;
    for (const Storage made : MadeInPart(variant, part)) {
      if (!kept.contains(made) || on_host.contains(made)) continue;
      part.events.push_back(FreeOf(made));
      on_host.insert(made);
    }
  }
  return changed;
}

bool EvaluationFollowsBatch(const Job& job, const Variant& variant) {
  const auto follows = [&](const TensorUse& tensor) {
    return std::ranges::any_of(job.layouts[tensor.layout].sizes, &Number::depends);
  };
  return std::ranges::any_of(variant.later, [&](const Part& part) {
    return IsBatch(part) && std::ranges::any_of(part.events, [&](const JobEvent& event) {
             const CallRecord* call = CallAt(variant, event);
             return call != nullptr && std::ranges::any_of(call->results, follows);
           });
  });
}

Variant EvaluateWholeBatches(const Variant& variant) {
  Variant changed = variant;
  for (Part& part : changed.later) part.of_whole_step = IsEvaluation(part);
  return changed;
}

Variant EvaluateInShares(const Variant& variant, int shares) {
  Variant changed = variant;
  changed.releases.clear();
  for (Part& part : changed.later) {
    if (IsEvaluation(part)) part.shares *= shares;
  }
  return changed;
}

}  // namespace plimsoll

#include "job/transforms/held_by_variables.h"

#include <algorithm>

namespace plimsoll {

std::vector<std::size_t> HeldByVariables(const Variant& variant) {
  struct Held {
    Storage storage;
    std::size_t last;  // of the stage's calls
  };
  std::vector<std::size_t> until(variant.storages, 0);
  std::vector<std::size_t> calls;
  std::vector<Held> held;
  // What an expression made goes before the variables of the function that returns with it.
  const auto end_stage = [&](std::size_t end) {
    calls.push_back(end);
    for (const Held& one : held) {
      until[one.storage] = calls[std::min(one.last + 1, calls.size() - 1)] - 1;
    }
    calls.clear();
    held.clear();
  };
  for (std::size_t i = 0; i < variant.events.size(); ++i) {
    const JobEvent& event = variant.events[i];
    if (event.kind == JobEvent::Kind::kStage) end_stage(i);
    if (event.kind != JobEvent::Kind::kCall) continue;
    calls.push_back(i);
    for (const NewStorage& fresh : variant.calls[event.index].fresh) {
      if (fresh.held_calls == 0) continue;
      held.push_back({.storage = fresh.storage, .last = calls.size() - 1 + fresh.held_calls});
    }
  }
  end_stage(variant.events.size());
  return until;
}

}  // namespace plimsoll

#include "allocator/held_spans.h"

#include <utility>

namespace plimsoll {

void HeldSpans::Settle(Position at) {
  std::map<Address, std::size_t> still;
  for (const MappedRange& range : ranges_.List()) {
    const auto open = open_.find(range.address);
    if (open != open_.end() && spans_[open->second].size == range.size) {
      still.insert(open_.extract(open));
      continue;
    }
    still[range.address] = spans_.size();
    spans_.push_back({.address = range.address,
                      .size = range.size,
                      .from = at,
                      .expandable = range.expandable,
                      .stream = range.stream,
                      .pool = range.pool});
  }
  for (const auto& [address, span] : open_) spans_[span].to = at;
  open_ = std::move(still);
}

}  // namespace plimsoll

#include "allocator/record/held_spans.h"

#include <algorithm>

namespace plimsoll {

void HeldSpans::Add(const MappedRange& range) {
  // A neighbour on the left grows by it, one on the right becomes a part of it.
  if (range.address > 0) {
    if (const MappedRange* left = ranges_.Around(range.address - 1)) {
      changed_.push_back(left->address);
    }
  }
  changed_.push_back(range.address);
  changed_.push_back(range.address + static_cast<Address>(range.size));
  ranges_.Add(range);
}

void HeldSpans::Remove(Address address, Bytes size) {
  const MappedRange* const whole = ranges_.Around(address);
  if (whole == nullptr) return;
  // What is left of it before and behind.
  const Address end = whole->address + static_cast<Address>(whole->size);
  changed_.push_back(whole->address);
  changed_.push_back(std::min(address + static_cast<Address>(size), end));
  ranges_.Remove(address, size);
}

void HeldSpans::Settle(Position at) {
  std::sort(changed_.begin(), changed_.end());
  changed_.erase(std::unique(changed_.begin(), changed_.end()), changed_.end());
  for (const Address begin : changed_) Compare(begin, at);
  changed_.clear();
}

/// What began there before, and what begins there now.
void HeldSpans::Compare(Address begin, Position at) {
  const auto before = open_.find(begin);
  const MappedRange* const range = ranges_.BeginningAt(begin);
  if (before != open_.end()) {
    if (range != nullptr && spans_[before->second].size == range->size) return;
    spans_[before->second].to = at;
    open_.erase(before);
  }
  if (range == nullptr) return;
  open_[begin] = spans_.size();
  spans_.push_back({.address = range->address,
                    .size = range->size,
                    .from = at,
                    .expandable = range->expandable,
                    .stream = range->stream,
                    .pool = range->pool});
}

}  // namespace plimsoll

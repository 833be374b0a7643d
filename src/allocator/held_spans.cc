#include "allocator/held_spans.h"

#include <iterator>
#include <utility>

namespace plimsoll {

void HeldSpans::Add(const MappedRange& range) {
  ranges_.Add(range);
  changed_.push_back({range.address, range.address + static_cast<Address>(range.size)});
}

void HeldSpans::Remove(Address address, Bytes size) {
  ranges_.Remove(address, size);
  changed_.push_back({address, address + static_cast<Address>(size)});
}

void HeldSpans::Settle(Position at) {
  for (const Stretch& changed : changed_) Compare(changed, at);
  changed_.clear();
}

/// Only what touches the stretch can have changed: what it was cut out of or grew, and its
/// neighbours.
void HeldSpans::Compare(const Stretch& changed, Position at) {
  auto first = open_.lower_bound(changed.begin);
  if (first != open_.begin()) --first;
  const auto last = open_.upper_bound(changed.end);
  std::map<Address, std::size_t> before(first, last);
  open_.erase(first, last);
  for (const MappedRange& range : ranges_.Touching(changed.begin, changed.end)) {
    const auto same = before.find(range.address);
    if (same != before.end() && spans_[same->second].size == range.size) {
      open_.insert(before.extract(same));
      continue;
    }
    open_[range.address] = spans_.size();
    spans_.push_back({.address = range.address,
                      .size = range.size,
                      .from = at,
                      .expandable = range.expandable,
                      .stream = range.stream,
                      .pool = range.pool});
  }
  for (const auto& [address, span] : before) spans_[span].to = at;
}

}  // namespace plimsoll

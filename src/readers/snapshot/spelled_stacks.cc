#include "readers/snapshot/spelled_stacks.h"

#include <algorithm>

namespace plimsoll::snapshot {

std::uint64_t SpelledStacks::Find(std::uint64_t hash, std::string_view spelling) const {
  if (entries_.empty()) return kUnknown;
  const std::size_t mask = entries_.size() - 1;
  for (std::size_t slot = hash & mask; entries_[slot].spelling.data() != nullptr;
       slot = (slot + 1) & mask) {
    const Entry& entry = entries_[slot];
    if (entry.hash == hash && entry.spelling == spelling) return entry.stack;
  }
  return kUnknown;
}

void SpelledStacks::Insert(const Entry& entry) {
  const std::size_t mask = entries_.size() - 1;
  std::size_t slot = entry.hash & mask;
  while (entries_[slot].spelling.data() != nullptr) slot = (slot + 1) & mask;
  entries_[slot] = entry;
}

void SpelledStacks::Add(std::uint64_t hash, std::string_view spelling, std::uint64_t stack) {
  if ((count_ + 1) * 2 > entries_.size()) {
    std::vector<Entry> old(std::max<std::size_t>(256, entries_.size() * 2));
    old.swap(entries_);
    for (const Entry& entry : old) {
      if (entry.spelling.data() != nullptr) Insert(entry);
    }
  }
  Insert({hash, spelling, stack});
  ++count_;
}

void SpelledStacks::Clear() {
  entries_.clear();
  count_ = 0;
}

}  // namespace plimsoll::snapshot

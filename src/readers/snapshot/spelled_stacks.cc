#include "readers/snapshot/spelled_stacks.h"

#include <algorithm>

#include "base/hash.h"

namespace plimsoll::snapshot {

const SpelledStacks::Spelled* SpelledStacks::Find(std::string_view spelling) const {
  if (slots_.empty()) return nullptr;
  const std::uint64_t hash = HashBytes(spelling);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = hash & mask; slots_[at].index != kEmpty; at = (at + 1) & mask) {
    const Spelled& known = all_[slots_[at].index];
    if (slots_[at].hash == hash && TextOf(known) == spelling) return &known;
  }
  return nullptr;
}

void SpelledStacks::Insert(std::uint64_t hash, std::uint32_t index) {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = hash & mask;
  while (slots_[at].index != kEmpty) at = (at + 1) & mask;
  slots_[at] = {hash, index};
}

const SpelledStacks::Spelled* SpelledStacks::Add(std::string_view spelling, std::uint64_t stack) {
  if (texts_.size() + spelling.size() > most_text_) return nullptr;
  if ((all_.size() + 1) * 2 > slots_.size()) {
    std::vector<Slot> old(std::max<std::size_t>(256, slots_.size() * 2));
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.index != kEmpty) Insert(slot.hash, slot.index);
    }
  }
  Insert(HashBytes(spelling), static_cast<std::uint32_t>(all_.size()));
  all_.push_back({.text = texts_.size(), .length = spelling.size(), .stack = stack});
  texts_ += spelling;
  return &all_.back();
}

void SpelledStacks::Clear() {
  texts_.clear();
  all_.clear();
  slots_.clear();
}

}  // namespace plimsoll::snapshot

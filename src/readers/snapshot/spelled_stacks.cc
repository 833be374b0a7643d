#include "readers/snapshot/spelled_stacks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace plimsoll::snapshot {

std::uint64_t SpelledStacks::Hash(std::string_view text) {
  // Four lanes, so that the multiplications overlap: this runs over nearly every byte of the file.
  constexpr std::uint64_t kMultiplier = 0x9fb21c651e98df25u;
  std::array<std::uint64_t, 4> lanes = {text.size(), 1, 2, 3};
  const char* p = text.data();
  std::size_t n = text.size();
  while (n >= 32) {
    for (std::size_t i = 0; i < 4; ++i) {
      std::uint64_t word;
      std::memcpy(&word, p + 8 * i, 8);
      lanes[i] = (std::rotl(lanes[i], 27) ^ word) * kMultiplier;
    }
    p += 32;
    n -= 32;
  }
  std::array<std::uint64_t, 4> tail{};
  if (n > 0) std::memcpy(tail.data(), p, n);
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    hash = (std::rotl(hash, 27) ^ lanes[i]) * kMultiplier;
    hash = (std::rotl(hash, 27) ^ tail[i]) * kMultiplier;
  }
  return hash ^ (hash >> 32);
}

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

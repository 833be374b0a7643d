// Remembers states of the search from which there is no way on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/hash.h"

namespace plimsoll {

/// 128 bits stand for a state: with as many states as a search can visit in a year, the chance that
/// two share them is below that of a broken machine.
struct StateKey {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend bool operator==(const StateKey&, const StateKey&) = default;

  void Mix(std::uint64_t a, std::uint64_t b) {
    low = MixHash(low, a);
    high = MixHash(high + 0x632be59bd9b4e019u, b);
  }
};

/// A table of fixed size: a new state takes the place of an older one in its slot.
class FailedStates {
 public:
  explicit FailedStates(unsigned bits) : mask_((std::size_t{1} << bits) - 1), slots_(mask_ + 1) {}

  bool Contains(const StateKey& key) const { return slots_[key.low & mask_] == key; }
  void Add(const StateKey& key) { slots_[key.low & mask_] = key; }

 private:
  std::size_t mask_;
  std::vector<StateKey> slots_;
};

}  // namespace plimsoll

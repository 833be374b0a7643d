// A hash table from 64-bit keys to 32-bit values: open addressing, linear probing, no tombstones.
// Following a trace looks up an address two or three times an event, which is most of the work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/hash.h"

namespace plimsoll {

class FlatMap {
 public:
  static constexpr std::uint32_t kMissing = 0xffffffffu;

  explicit FlatMap(std::size_t expected = 0) { Rehash(expected * 2); }

  /// The value of `key`, or kMissing.
  std::uint32_t Find(std::uint64_t key) const {
    for (std::size_t slot = Slot(key);; slot = (slot + 1) & mask_) {
      if (values_[slot] == kMissing) return kMissing;
      if (keys_[slot] == key) return values_[slot];
    }
  }

  void Set(std::uint64_t key, std::uint32_t value) {
    if ((size_ + 1) * 2 > keys_.size()) Rehash(keys_.size() * 2);
    std::size_t slot = Slot(key);
    while (values_[slot] != kMissing && keys_[slot] != key) slot = (slot + 1) & mask_;
    if (values_[slot] == kMissing) ++size_;
    keys_[slot] = key;
    values_[slot] = value;
  }

  void Erase(std::uint64_t key) {
    std::size_t slot = Slot(key);
    while (true) {
      if (values_[slot] == kMissing) return;
      if (keys_[slot] == key) break;
      slot = (slot + 1) & mask_;
    }
    --size_;
    // Move later entries of the same run back, so that no search ends too early.
    std::size_t hole = slot;
    for (std::size_t next = (slot + 1) & mask_; values_[next] != kMissing;
         next = (next + 1) & mask_) {
      const std::size_t home = Slot(keys_[next]);
      if (((next - home) & mask_) >= ((next - hole) & mask_)) {
        keys_[hole] = keys_[next];
        values_[hole] = values_[next];
        hole = next;
      }
    }
    values_[hole] = kMissing;
  }

  std::size_t size() const { return size_; }

 private:
  std::size_t Slot(std::uint64_t key) const {
    return static_cast<std::size_t>(MixHash(0, key) >> shift_);
  }
  void Rehash(std::size_t wanted) {
    std::size_t capacity = 64;
    unsigned bits = 6;
    while (capacity < wanted) {
      capacity *= 2;
      ++bits;
    }
    std::vector<std::uint64_t> old_keys(capacity);
    std::vector<std::uint32_t> old_values(capacity, kMissing);
    old_keys.swap(keys_);
    old_values.swap(values_);
    mask_ = capacity - 1;
    shift_ = 64 - bits;
    size_ = 0;
    for (std::size_t i = 0; i < old_keys.size(); ++i) {
      if (old_values[i] != kMissing) Set(old_keys[i], old_values[i]);
    }
  }

  std::vector<std::uint64_t> keys_;
  std::vector<std::uint32_t> values_;
  std::size_t mask_ = 0;
  std::size_t size_ = 0;
  unsigned shift_ = 0;
};

}  // namespace plimsoll

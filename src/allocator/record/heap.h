// The blocks of a heap whose decisions are known: it splits and merges as the record says.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "allocator/settings/rules.h"
#include "base/flat_map.h"
#include "timeline/timeline.h"

namespace plimsoll {

class RecordedHeap {
 public:
  RecordedHeap(const AllocatorRules& rules, std::size_t expected_blocks)
      : rules_(rules), at_(expected_blocks) {}

  /// Memory from the driver: one free block, joined to its neighbours where it is expandable.
  void AddRange(Address address, Bytes size, bool expandable);
  /// Memory back to the driver. False if something there was in use.
  bool RemoveRange(Address address, Bytes size, bool expandable);

  struct Placed {
    std::uint32_t block = FlatMap::kMissing;
    Bytes size = 0;
    /// False where no free block of that size began at that address.
    bool consistent = true;
  };
  /// Hands out the block at `address` for a rounded request.
  Placed Allocate(Address address, Bytes rounded);
  /// The same where the block's true size is known, since it was there before the record began.
  /// `rest` is where the free rest of the range begins; blocks are placed from left to right.
  std::uint32_t PlaceExactly(Address rest, Address address, Bytes size);

  /// The block that begins at `address`, or kMissing.
  std::uint32_t Find(Address address) const { return at_.Find(address); }
  bool InUse(std::uint32_t block) const { return !blocks_[block].free; }
  void SetOwner(std::uint32_t block, std::uint32_t allocation) {
    blocks_[block].owner = allocation;
  }
  std::uint32_t Owner(std::uint32_t block) const { return blocks_[block].owner; }
  /// Frees a block in use and merges it with its free neighbours.
  void Free(std::uint32_t block);

 private:
  struct Block {
    Address address = 0;
    Bytes size = 0;
    std::uint32_t prev = FlatMap::kMissing;
    std::uint32_t next = FlatMap::kMissing;
    std::uint32_t owner = FlatMap::kMissing;
    bool free = true;
    bool expandable = false;
  };

  std::uint32_t NewBlock(Address address, Bytes size, bool expandable);
  void Drop(std::uint32_t block);
  void Link(std::uint32_t left, std::uint32_t right);
  /// Cuts `size` bytes off the front of a block; the remainder stays free behind it.
  void SplitOff(std::uint32_t block, Bytes size);
  void Merge(std::uint32_t left, std::uint32_t right);
  std::uint32_t Containing(Address address) const;

  const AllocatorRules& rules_;
  std::vector<Block> blocks_;
  std::vector<std::uint32_t> unused_;
  FlatMap at_;
  std::set<Address> expandable_;  // where blocks of expandable segments begin
};

}  // namespace plimsoll

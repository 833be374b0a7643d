#include "allocator/record/heap.h"

#include <algorithm>

namespace plimsoll {
namespace {
constexpr std::uint32_t kNoBlock = FlatMap::kMissing;
}

std::uint32_t RecordedHeap::NewBlock(Address address, Bytes size, bool expandable) {
  std::uint32_t index;
  if (unused_.empty()) {
    index = static_cast<std::uint32_t>(blocks_.size());
    blocks_.emplace_back();
  } else {
    index = unused_.back();
    unused_.pop_back();
  }
  blocks_[index] = Block{.address = address, .size = size, .expandable = expandable};
  at_.Set(address, index);
  if (expandable) expandable_.insert(address);
  return index;
}

void RecordedHeap::Drop(std::uint32_t index) {
  Block& block = blocks_[index];
  if (block.prev != kNoBlock) blocks_[block.prev].next = block.next;
  if (block.next != kNoBlock) blocks_[block.next].prev = block.prev;
  at_.Erase(block.address);
  if (block.expandable) expandable_.erase(block.address);
  unused_.push_back(index);
}

void RecordedHeap::Link(std::uint32_t left, std::uint32_t right) {
  if (left != kNoBlock) blocks_[left].next = right;
  if (right != kNoBlock) blocks_[right].prev = left;
}

void RecordedHeap::SplitOff(std::uint32_t index, Bytes size) {
  const Block whole = blocks_[index];
  const std::uint32_t rest =
      NewBlock(whole.address + static_cast<Address>(size), whole.size - size, whole.expandable);
  blocks_[index].size = size;
  Link(rest, whole.next);
  Link(index, rest);
}

void RecordedHeap::Merge(std::uint32_t left, std::uint32_t right) {
  blocks_[left].size += blocks_[right].size;
  Drop(right);
}

std::uint32_t RecordedHeap::Containing(Address address) const {
  auto after = expandable_.upper_bound(address);
  if (after == expandable_.begin()) return kNoBlock;
  return at_.Find(*std::prev(after));
}

void RecordedHeap::AddRange(Address address, Bytes size, bool expandable) {
  if (size <= 0 || at_.Find(address) != kNoBlock) return;
  std::uint32_t left = kNoBlock;
  if (expandable) {
    left = Containing(address);
    if (left != kNoBlock &&
        blocks_[left].address + static_cast<Address>(blocks_[left].size) != address) {
      left = kNoBlock;
    }
  }
  std::uint32_t index = NewBlock(address, size, expandable);
  if (!expandable) return;
  const std::uint32_t right = at_.Find(address + static_cast<Address>(size));
  if (right != kNoBlock && blocks_[right].expandable) {
    Link(index, right);
    if (blocks_[right].free) Merge(index, right);
  }
  if (left != kNoBlock) {
    Link(left, index);
    if (blocks_[left].free) Merge(left, index);
  }
}

bool RecordedHeap::RemoveRange(Address address, Bytes size, bool expandable) {
  std::uint32_t index = at_.Find(address);
  if (index == kNoBlock && expandable) index = Containing(address);
  if (index == kNoBlock || size <= 0) return false;
  const Block found = blocks_[index];
  // Addresses may lie more than 2^63 apart: compare before the difference becomes a size.
  if (!found.free || address - found.address >= static_cast<Address>(found.size)) return false;
  const auto skip = static_cast<Bytes>(address - found.address);
  if (size > found.size - skip) return false;
  // Pages wholly inside a free block go; what is left at either end stays a free block.
  if (skip + size < found.size) SplitOff(index, skip + size);
  if (skip > 0) {
    SplitOff(index, skip);
    index = at_.Find(address);
  }
  Block& gone = blocks_[index];
  if (gone.prev != kNoBlock) blocks_[gone.prev].next = kNoBlock;
  if (gone.next != kNoBlock) blocks_[gone.next].prev = kNoBlock;
  gone.prev = gone.next = kNoBlock;
  Drop(index);
  return true;
}

RecordedHeap::Placed RecordedHeap::Allocate(Address address, Bytes rounded) {
  std::uint32_t index = at_.Find(address);
  if (index == kNoBlock || !blocks_[index].free || blocks_[index].size < rounded) {
    if (index != kNoBlock) Drop(index);
    index = NewBlock(address, rounded, false);
    blocks_[index].free = false;
    return {index, rounded, false};
  }
  const Bytes remainder = blocks_[index].size - rounded;
  if (remainder > 0 && rules_.Splits(rounded, remainder, blocks_[index].expandable)) {
    SplitOff(index, rounded);
  }
  blocks_[index].free = false;
  return {index, blocks_[index].size, true};
}

std::uint32_t RecordedHeap::PlaceExactly(Address rest, Address address, Bytes size) {
  const std::uint32_t before = at_.Find(rest);
  if (before == kNoBlock || !blocks_[before].free || address < rest || size <= 0) return kNoBlock;
  if (address - rest >= static_cast<Address>(blocks_[before].size)) return kNoBlock;
  if (size > blocks_[before].size - static_cast<Bytes>(address - rest)) return kNoBlock;
  if (address > rest) SplitOff(before, static_cast<Bytes>(address - rest));
  const std::uint32_t index = at_.Find(address);
  if (size < blocks_[index].size) SplitOff(index, size);
  blocks_[index].free = false;
  return index;
}

void RecordedHeap::Free(std::uint32_t index) {
  blocks_[index].free = true;
  blocks_[index].owner = kNoBlock;
  const std::uint32_t prev = blocks_[index].prev;
  if (prev != kNoBlock && blocks_[prev].free) {
    Merge(prev, index);
    index = prev;
  }
  const std::uint32_t next = blocks_[index].next;
  if (next != kNoBlock && blocks_[next].free) Merge(index, next);
}

}  // namespace plimsoll

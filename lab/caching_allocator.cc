#include "caching_allocator.h"

#include <iterator>

namespace plimsoll::bench {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kSmallest = 512;    // every block is a multiple of this
constexpr std::int64_t kSmallMost = kMiB;  // up to here, the small pool
constexpr std::int64_t kSmallSegment = 2 * kMiB;
constexpr std::int64_t kLargeSegment = 20 * kMiB;
constexpr std::int64_t kOwnSegment = 10 * kMiB;  // from here a segment is cut to measure

std::int64_t RoundUp(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

void CachingAllocator::Record(What what, std::uint64_t address, std::int64_t size,
                              std::uint32_t stack, std::uint32_t context) {
  // Between 1 and 16 µs apart, without a random generator.
  now_ += 1 + static_cast<std::int64_t>((events_.size() * 2654435761u >> 16) & 15);
  events_.push_back({address, size, now_, stack, context, what});
}

std::uint64_t CachingAllocator::NewSegment(std::int64_t size, std::uint32_t stack) {
  std::int64_t segment_size = RoundUp(size, 2 * kMiB);
  if (size <= kSmallMost) {
    segment_size = kSmallSegment;
  } else if (size < kOwnSegment) {
    segment_size = kLargeSegment;
  }
  const std::uint64_t address = next_segment_;
  next_segment_ += static_cast<std::uint64_t>(segment_size);
  Record(What::kSegmentAlloc, address, segment_size, stack, next_context_);
  blocks_[address] = {.size = segment_size,
                      .segment = static_cast<std::uint32_t>(segments_.size())};
  segments_.push_back({address, segment_size, size <= kSmallMost, stack, next_context_});
  (size <= kSmallMost ? small_ : large_).emplace(segment_size, address);
  return address;
}

std::uint64_t CachingAllocator::Allocate(std::int64_t requested, std::uint32_t stack) {
  if (full()) return 0;
  const std::int64_t size = RoundUp(requested, kSmallest);
  const bool small = size <= kSmallMost;
  FreeList& list = small ? small_ : large_;
  auto best = list.lower_bound({size, 0});
  if (best == list.end()) {
    NewSegment(size, stack);
    if (full()) return 0;
    best = list.lower_bound({size, 0});
  }
  const std::uint64_t address = best->second;
  list.erase(best);
  Block& block = blocks_[address];
  const std::int64_t rest = block.size - size;
  if (small ? rest >= kSmallest : rest > kSmallMost) {
    const std::uint64_t rest_address = address + static_cast<std::uint64_t>(size);
    blocks_[rest_address] = {.size = rest, .segment = block.segment};
    list.emplace(rest, rest_address);
    block.size = size;
  }
  block.requested = requested;
  block.state = Block::kUsed;
  block.stack = stack;
  block.context = next_context_++;
  Record(What::kAlloc, address, requested, stack, block.context);
  return address;
}

void CachingAllocator::Free(std::uint64_t address, std::uint32_t stack) {
  if (full() || address == 0) return;
  auto it = blocks_.find(address);
  const std::uint32_t context = next_context_++;
  Record(What::kFreeRequested, address, it->second.requested, stack, context);
  it->second.state = Block::kPending;
  if (full()) return;
  Record(What::kFreeCompleted, address, it->second.requested, stack, context);

  // Back to the free list, merged with free neighbours of the same segment.
  FreeList& list = ListOf(it->second);
  it->second.state = Block::kFree;
  const auto absorb_next = [&](auto left) {
    const auto right = std::next(left);
    if (right == blocks_.end() || right->second.state != Block::kFree ||
        right->second.segment != left->second.segment) {
      return;
    }
    list.erase({right->second.size, right->first});
    left->second.size += right->second.size;
    blocks_.erase(right);
  };
  absorb_next(it);
  if (it != blocks_.begin()) {
    const auto left = std::prev(it);
    if (left->second.state == Block::kFree && left->second.segment == it->second.segment) {
      list.erase({left->second.size, left->first});
      absorb_next(left);
      it = left;
    }
  }
  list.emplace(it->second.size, it->first);
}

}  // namespace plimsoll::bench

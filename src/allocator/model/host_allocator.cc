#include "allocator/model/host_allocator.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace plimsoll {
namespace {

/// No host has more, and sums of such numbers stay numbers.
constexpr Bytes kMostPinned = Bytes{1} << 50;

}  // namespace

Bytes HostAllocator::BlockSize(Bytes bytes) const {
  if (bytes > settings_.max_round_threshold) return bytes;
  return static_cast<Bytes>(std::bit_ceil(static_cast<std::uint64_t>(bytes)));
}

HostAllocator::Request HostAllocator::Take(Bytes bytes) {
  bytes = std::clamp<Bytes>(bytes, 1, kMostPinned);
  const Bytes size = BlockSize(bytes);
  blocks_.push_back({.asked = bytes, .size = size, .in_use = true});
  asked_ = std::min(asked_ + bytes, kMostPinned);
  if (const auto kept = free_.find(size); kept != free_.end() && kept->second > 0) {
    --kept->second;
    return blocks_.size() - 1;
  }
  if (!has_segment_ && settings_.reserve_segment_size > 0) {
    has_segment_ = true;
    held_ = left_in_segment_ = settings_.reserve_segment_size;
  }
  if (size <= left_in_segment_) {
    left_in_segment_ -= size;
  } else {
    held_ = std::min(held_ + size, kMostPinned);
  }
  return blocks_.size() - 1;
}

void HostAllocator::Give(Request request) {
  PLIMSOLL_CHECK(request < blocks_.size());
  Block& block = blocks_[request];
  if (!block.in_use) return;
  block.in_use = false;
  asked_ -= std::min(asked_, block.asked);
  if (block.size > settings_.max_cached_size) {
    held_ -= std::min(held_, block.size);
  } else {
    ++free_[block.size];
  }
}

}  // namespace plimsoll

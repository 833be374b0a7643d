// The sizes and rounding rules of PyTorch's CUDA caching allocator, as far as following a record
// needs them. docs/allocator.md says where each comes from.
#pragma once

#include <array>
#include <cstdint>
#include <limits>

#include "base/bytes.h"
#include "timeline/timeline.h"

namespace plimsoll {

inline constexpr Bytes kMinBlock = 512;
/// Requests up to this size share 2 MiB segments.
inline constexpr Bytes kSmallRequest = kMiB;
inline constexpr Bytes kSmallSegment = 2 * kMiB;
/// In the large pool a remainder up to this size stays with the block.
inline constexpr Bytes kLeastLargeRemainder = kMiB;
inline constexpr Bytes kLargeSegment = 20 * kMiB;

struct AllocatorRules {
  Bytes max_split_size = std::numeric_limits<Bytes>::max();
  Bytes large_segment = kLargeSegment;
  std::array<std::int64_t, 16> roundup_power2_divisions{};

  static AllocatorRules From(const RecordedSettings& settings);

  /// The block size for a request: a multiple of 512, or a division of a power of two.
  Bytes Round(Bytes requested) const;
  /// Whether a free block keeps its remainder when `size` bytes of it are handed out.
  bool Splits(Bytes size, Bytes remainder, bool expandable) const {
    if (size <= kSmallRequest || expandable) return remainder >= kMinBlock;
    return size < max_split_size && remainder > kLeastLargeRemainder;
  }
};

}  // namespace plimsoll

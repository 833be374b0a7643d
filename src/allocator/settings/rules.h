// The sizes and rounding rules of PyTorch's CUDA caching allocator under given settings, for a
// given release. docs/allocator.md says where each comes from.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "allocator/settings/settings.h"
#include "allocator/settings/version.h"
#include "base/bytes.h"
#include "timeline/timeline.h"

namespace plimsoll {

inline constexpr Bytes kMinBlock = 512;
/// Requests up to this size share 2 MiB segments.
inline constexpr Bytes kSmallRequest = kMiB;
inline constexpr Bytes kSmallSegment = 2 * kMiB;
/// In the large pool a remainder up to this size stays with the block.
inline constexpr Bytes kLeastLargeRemainder = kMiB;
/// Requests from this size on have a segment of their own, rounded up to kSegmentUnit.
inline constexpr Bytes kOwnSegmentRequest = 10 * kMiB;
inline constexpr Bytes kSegmentUnit = 2 * kMiB;

struct AllocatorRules {
  AllocatorSettings settings;
  VersionRules version;

  /// A record's own settings. Rounding, splitting and segment sizes are alike in all releases.
  static AllocatorRules From(const RecordedSettings& recorded, TorchVersion version = {});

  /// The block size for a request: a multiple of 512, or a division of a power of two.
  Bytes Round(Bytes requested) const {
    if (requested < kMinBlock) return kMinBlock;
    const std::int64_t divisions = DivisionsFor(requested);
    if (divisions > 1 && requested / divisions > kMinBlock) {
      return RoundToDivision(requested, divisions);
    }
    return RoundUp(requested, kMinBlock);
  }

  /// Whether a free block keeps its remainder when `size` bytes of it are handed out.
  bool Splits(Bytes size, Bytes remainder, bool expandable) const {
    if (size <= kSmallRequest || expandable) return remainder >= kMinBlock;
    return size < settings.max_split_size && remainder > kLeastLargeRemainder;
  }

  /// What the driver is asked for when a rounded request finds no free block.
  Bytes SegmentFor(Bytes rounded) const {
    if (rounded <= kSmallRequest) return kSmallSegment;
    if (rounded < kOwnSegmentRequest) return settings.large_segment_size;
    return RoundUp(rounded, kSegmentUnit);
  }

 private:
  /// One setting for each power of two from 1 MiB to 32 GiB; smaller sizes use the first.
  std::int64_t DivisionsFor(Bytes requested) const {
    const int log2 = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(requested))) - 1;
    return settings
        .roundup_power2_divisions[static_cast<std::size_t>(std::clamp(log2 - 20, 0, 15))];
  }
  static Bytes RoundToDivision(Bytes requested, std::int64_t divisions);
  /// A size so large that it cannot be rounded up stays as it is: a hostile record may hold one.
  static Bytes RoundUp(Bytes size, Bytes unit) {
    if (size > std::numeric_limits<Bytes>::max() - unit) return size;
    return (size + unit - 1) / unit * unit;
  }
};

}  // namespace plimsoll

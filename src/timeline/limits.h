// What can be on a device at all. Readers let nothing else through, so that whoever computes with
// addresses, sizes and times need not fear overflow.
#pragma once

#include "timeline/timeline.h"

namespace plimsoll {

/// No device has a pebibyte.
inline constexpr Bytes kLargestSize = Bytes{1} << 50;
/// The sum of all sizes of a record: whatever is added up later, even tenfold, cannot overflow.
inline constexpr Bytes kMostInAll = Bytes{1} << 58;
/// Microseconds; some centuries from now, and as far before 1970. Differences cannot overflow.
inline constexpr TimeUs kLatestTime = TimeUs{1} << 53;

/// PyTorch makes 32 streams for each priority of a device; other libraries add their own. Later
/// ones count as the first, so that what is kept for each stream stays small.
inline constexpr std::size_t kMostStreams = 1024;

/// Whether a device can have this range, also when the allocator rounds its size up (to at most
/// twice as much, or to a segment): its end is an address too.
constexpr bool IsDeviceRange(Address address, Bytes size) {
  if (size < 0 || size > kLargestSize) return false;
  constexpr Address kLargestSegment = Address{1} << 30;
  return address <= ~Address{0} - 2 * static_cast<Address>(size) - kLargestSegment;
}

}  // namespace plimsoll

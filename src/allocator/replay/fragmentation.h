// Where the bytes are that the allocator holds and no tensor uses: by cause, and by the block that
// pins them. Read off the model at one instant of a replay.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "allocator/record/ledger.h"
#include "allocator/replay/replay.h"

namespace plimsoll {

enum class Waste : std::uint8_t {
  kRounding,        // requests rounded up to 512 bytes, or to a division of a power of two
  kTails,           // remainders up to 1 MiB (or of an unsplittable block) that stay with a block
  kPending,         // freed, but another stream still uses it
  kSmallSegments,   // free parts of 2 MiB segments in use
  kSharedSegments,  // free parts of the 20 MiB segments that requests of 1 to 10 MiB share
  kPinned,          // free parts of larger or expandable segments, held by a block in use
  kOtherStreams,    // free, but only for another stream than the one that asked
  kOtherPools,      // free, but in the private pool of a graph or a MemPool
  kCached,          // segments that are wholly free
};
inline constexpr std::size_t kWastes = 9;

/// "rounding", "tails", …: the names in JSON.
std::string_view WasteName(Waste waste);

/// A segment in use with much that is free, and the block in it that lives longest.
struct Pinned {
  Address segment = 0;
  Bytes segment_size = 0;
  Bytes free = 0;
  Bytes largest_free = 0;
  /// Bytes in use that keep the segment; the longest-lived of them.
  Bytes used = 0;
  std::uint32_t allocation = Ledger::kNoAllocation;
};

/// The largest free block of one pool and stream.
struct LargestFree {
  std::uint8_t pool = 0;
  std::uint16_t stream = 0;
  bool small = false;
  Bytes size = 0;
  Bytes free = 0;
};

struct Fragmentation {
  Bytes reserved = 0;
  /// What the program asked for; with the wastes it adds up to reserved.
  Bytes requested = 0;
  std::array<Bytes, kWastes> waste{};
  std::vector<Pinned> pinned;  // most free first
  std::vector<LargestFree> largest_free;

  Bytes operator[](Waste w) const { return waste[static_cast<std::size_t>(w)]; }
};

/// At the present instant of a replay, for a request of this stream and pool.
Fragmentation Fragments(const Replayer& replayer, const Ledger& ledger, const Request& request);

}  // namespace plimsoll

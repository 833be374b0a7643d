// What a record implies: every allocation with its life and the size of its block, and what the
// device held at any event. The record says where each block was put; the allocator's rules say how
// large it was (a block keeps a remainder that is too small to split off), so PyTorch's own figures
// come out to the byte without deciding anything anew.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "allocator/settings/rules.h"
#include "timeline/missing_kinds.h"
#include "timeline/timeline.h"

namespace plimsoll {

struct Allocation {
  Address address = 0;
  /// What the program asked for.
  Bytes requested = 0;
  /// What allocated_bytes counts: the whole block.
  Bytes block = 0;
  Position made = kBefore;
  /// The program let go of it; allocated_bytes falls here.
  Position released = kNotYet;
  /// The block became free: later than `released` where another stream still used it.
  Position freed = kNotYet;
  StackId stack;
  std::uint16_t stream = 0;
  std::uint8_t pool = 0;

  bool HeldAt(Position p) const { return made <= p && released > p; }
  bool PendingAt(Position p) const { return released <= p && freed > p; }
};

/// A run of addresses that the allocator holds from the driver.
struct MappedRange {
  Address address = 0;
  Bytes size = 0;
  std::uint16_t stream = 0;
  std::uint8_t pool = 0;
  bool expandable = false;
};

struct Ledger {
  static constexpr std::uint32_t kNoAllocation = 0xffffffffu;

  std::vector<Allocation> allocations;
  /// For each event the allocation that it makes, releases or frees.
  std::vector<std::uint32_t> allocation_of_event;
  /// Held from the driver before the first event.
  std::vector<MappedRange> initial_ranges;
  /// Whether the record tells what was held from the driver at all (profiler traces do not).
  bool has_segments = false;
  /// Events that contradict what came before them; 0 for every real snapshot seen.
  std::int64_t contradictions = 0;
  /// Blocks that were there before the first event.
  std::int64_t before = 0;
  /// Kinds of events that were not recorded. What follows from that is no contradiction.
  MissingKinds missing;

  Bytes initial_allocated = 0;
  Bytes initial_reserved = 0;
  Bytes peak_allocated = 0;
  Position peak_allocated_at = kBefore;
  Bytes peak_reserved = 0;
  Position peak_reserved_at = kBefore;
};

/// Follows the record from its first event to its last.
Ledger Follow(const Timeline& timeline);

/// The out-of-memory event that ended the run: the last one, if nothing of note was allocated after
/// it (a traceback's unwinding, the dump itself).
std::optional<Position> FatalOutOfMemory(const Timeline& timeline, const Ledger& ledger);

/// What was held from the driver after event `at`, in order of address.
std::vector<MappedRange> RangesAt(const Timeline& timeline, const Ledger& ledger, Position at);

}  // namespace plimsoll

// What a job asks of the allocator: the record with the allocator's own decisions taken out. The
// same requests can then be put to the allocator under other settings.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "allocator/model/caching_allocator.h"
#include "allocator/record/ledger.h"
#include "timeline/timeline.h"

namespace plimsoll {

struct Request {
  enum class Kind : std::uint8_t {
    kAllocate,
    kFree,          // let go and free at once: the common case
    kRequestFree,   // let go; another stream still uses it
    kCompleteFree,  // no other stream uses it any more
    kEmptyCache,
    kRefused,      // asked for and refused in the record; what it was for is unknown
    kAbandonPool,  // the private pool's owner is gone
    kBorrow,       // taken and given back at once; whoever asks does without it if it is refused
    kSearch,       // the same where it is no loss if it is refused; then the cache is emptied
  };

  Bytes size = 0;
  /// Index into Ledger::allocations; kNoAllocation for those that have none.
  std::uint32_t allocation = Ledger::kNoAllocation;
  EventIndex event = 0;
  std::uint16_t stream = 0;
  std::uint8_t pool = 0;
  Kind kind = Kind::kAllocate;

  /// It is there at this request only.
  bool passes() const { return kind == Kind::kBorrow || kind == Kind::kSearch; }
};

/// Requests that are made again, so many times: each time of blocks of their own.
struct RepeatedRequests {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::int64_t times = 0;
  /// How much higher the numbers of the allocations are each time.
  std::uint32_t shift = 0;
  /// Allocations from before that they free, in order: the next time it is those with a number that
  /// is higher by `shift`.
  std::vector<std::uint32_t> carried = {};
};

struct Workload {
  std::vector<Request> requests;
  /// In order. Whoever wants a run with them asks for the Next() request.
  std::vector<RepeatedRequests> repeats;
  /// How many allocations there are, earlier ones included.
  std::size_t allocations = 0;
  /// Whether a request in this pool is part of a capture, by pool.
  std::vector<bool> captures;
  std::vector<std::uint64_t> streams;
  /// What was held before the first request.
  std::vector<CachingAllocator::SeedSegment> seeds;
  /// The allocation behind each piece of each seed; kNoAllocation for holes.
  std::vector<std::vector<std::uint32_t>> seed_allocations;
  /// The same blocks as requests, for a run whose segments would have been others.
  std::vector<Request> earlier;
  /// The refusal that ended the recorded run: an index into requests.
  std::optional<std::size_t> fatal;

  std::size_t pools() const { return captures.size(); }
};

/// The segments that were there before the first event, as the model needs them. `reservation`
/// tells how many addresses an expandable segment reserves.
void AddSeeds(const Timeline& timeline, const Ledger& ledger,
              const std::function<Bytes(bool small)>& reservation, Workload& workload);

/// The blocks of a run, by allocation.
struct Holdings {
  /// kNone for those that are not there, or not any more.
  std::vector<CachingAllocator::BlockId> blocks;
  /// Of those that were let go and wait for other streams; 0 for the others.
  std::vector<CachingAllocator::Ticket> tickets;

  explicit Holdings(std::size_t allocations)
      : blocks(allocations, CachingAllocator::kNone), tickets(allocations, 0) {}
};

/// Puts the seeds into an allocator.
void Plant(const Workload& workload, CachingAllocator& allocator, Holdings& holdings);

/// The pool of each event: as recorded, or (up to 2.11, where events have none) that of the segment
/// in which it lies, as far as that segment was still there at the end.
std::vector<std::uint8_t> PoolsOfEvents(const Timeline& timeline);

}  // namespace plimsoll

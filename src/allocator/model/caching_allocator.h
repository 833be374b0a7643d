// PyTorch's CUDA caching allocator: given the requests of a job, it decides what PyTorch decides.
// Which free block is taken, where it is split, when the driver is asked, what is given back and in
// which order. docs/allocator.md tells each rule and how it was verified.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "allocator/model/driver.h"
#include "allocator/model/free_list.h"
#include "allocator/settings/rules.h"
#include "base/bytes.h"
#include "timeline/timeline.h"

namespace plimsoll {

/// More than any device has: sums up to here cannot overflow. PyTorch refuses such requests at
/// once.
inline constexpr Bytes kNoDevice = Bytes{1} << 60;

/// What stops the allocator from growing.
struct DeviceLimits {
  /// The per-process memory fraction in bytes; garbage collection measures against it too.
  std::optional<Bytes> limit = {};
  /// What the driver can give to this allocator at most.
  std::optional<Bytes> capacity = {};
  /// The device's whole memory: an expandable segment reserves addresses for 9/8 of it. Where it is
  /// not known, so much that no segment runs out of them.
  Bytes total = Bytes{1} << 40;
};

/// A call to the driver that changed what the allocator holds.
struct DriverCall {
  Action action = Action::kSegmentAlloc;
  Address address = 0;
  Bytes size = 0;

  friend bool operator==(const DriverCall&, const DriverCall&) = default;
};

struct AllocatorCounters {
  Bytes allocated = 0;
  Bytes reserved = 0;
  Bytes peak_allocated = 0;
  Bytes peak_reserved = 0;
  /// Times that everything cached was given back before a second try.
  std::int64_t retries = 0;
  /// Requests that failed in the end.
  std::int64_t refused = 0;
  std::int64_t driver_allocations = 0;
  std::int64_t driver_frees = 0;
  /// Bytes that were given back to the driver.
  Bytes given_back = 0;
  /// What the calls cost, at the prices of DriverMicroseconds.
  double driver_us = 0;
};

class CachingAllocator {
 public:
  using BlockId = std::uint32_t;
  static constexpr BlockId kNone = 0xffffffffu;
  /// Names a free that waits. (Its block's id may be used anew once a release has completed it.)
  using Ticket = std::uint32_t;

  enum class State : std::uint8_t {
    kUnused,  // not a block: its place in the table waits to be used again
    kFree,
    kAllocated,
    kPending,   // freed by the program, but another stream still uses it
    kUnmapped,  // addresses of an expandable segment without memory behind them
  };

  struct Block {
    Address address = 0;
    Bytes size = 0;
    /// Breaks ties between blocks of one size in releases that do not go by address: of the block
    /// (2.12), or of its segment, so that adding the address gives the order (from 2.13 on).
    std::uint64_t number = 0;
    BlockId prev = kNone;
    BlockId next = kNone;
    /// Index of the expandable segment, or kNone.
    std::uint32_t reservation = kNone;
    /// Count of searches in its pool when it became free: garbage collection reckons its age by it.
    std::uint32_t freed_at_search = 0;
    std::uint16_t stream = 0;
    std::uint16_t pool = 0;
    State state = State::kUnused;
  };

  /// A part of a segment from before the record that is not free: in order of address.
  struct SeedPiece {
    Address address = 0;
    Bytes size = 0;
    State state = State::kAllocated;
  };
  struct SeedSegment {
    Address address = 0;
    Bytes size = 0;
    std::uint16_t stream = 0;
    std::uint8_t pool = 0;
    bool small = false;
    /// Then address and size are those of the whole reservation, holes and all.
    bool expandable = false;
    std::vector<SeedPiece> pieces;
  };

  /// `streams` are the cudaStream_t values behind the indices: their order is that of releasing.
  CachingAllocator(const AllocatorRules& rules, const DeviceLimits& limits, Driver& driver,
                   std::span<const std::uint64_t> streams, std::size_t pools);

  /// A request; kNone if it fails. `pool` 0 is the default pool. In a capture nothing cached is
  /// released to make room.
  BlockId Allocate(Bytes requested, std::uint16_t stream, std::uint8_t pool = 0,
                   bool capturing = false);
  /// Whether the cache would serve this request.
  bool Serves(Bytes requested, std::uint16_t stream, std::uint8_t pool) const;
  /// The program lets go and nothing else uses it: the block joins its free neighbours.
  void Free(BlockId block);
  /// The program lets go, but another stream still uses the block.
  Ticket RequestFree(BlockId block);
  /// No other stream uses it any more; nothing if a release waited for it before.
  void CompleteFree(Ticket ticket);
  /// torch.cuda.empty_cache().
  void EmptyCache() { ReleaseCached(); }
  /// From now on a release gives back this private pool too: its graph or MemPool is gone.
  void AbandonPool(std::uint8_t pool);

  /// Puts a segment there that was held before the record began. What its pieces do not cover is
  /// free. Returns the blocks of the pieces, in their order; of those that wait, the tickets.
  std::vector<std::uint32_t> Seed(const SeedSegment& segment);

  const AllocatorCounters& counters() const { return counters_; }
  const Block& block(BlockId id) const { return blocks_[id]; }
  std::span<const Block> blocks() const { return blocks_; }
  /// What was asked of the driver since the last Clear.
  const std::vector<DriverCall>& calls() const { return calls_; }
  void ClearCalls() { calls_.clear(); }
  const AllocatorRules& rules() const { return rules_; }
  /// A hash of what decides which blocks the next requests get, the driver's calls so far included.
  std::uint64_t StateHash() const;
  /// Whether the same requests from the same state lead to the same state: garbage collection goes
  /// by how long something was free.
  bool RepeatsItself() const { return !collects_; }
  bool IsSmall(std::uint16_t pool) const { return pools_[pool].small; }
  /// The pool's id as the requests name it.
  std::uint8_t PoolOf(std::uint16_t pool) const { return static_cast<std::uint8_t>(pool / 2); }
  Bytes ReservationSize(bool small) const;
  /// The most that garbage collection leaves alone; nothing where it is off.
  std::optional<Bytes> CollectionThreshold() const;

 private:
  struct Pool {
    bool small = false;
    /// One list a stream, indexed by the stream's rank.
    std::vector<FreeList> free;
    /// Unmapped pieces, by stream and address; their count stays small.
    std::vector<BlockId> unmapped;
    std::uint32_t searches = 0;
  };
  struct Reservation {
    Address base = 0;
    Bytes page = 0;
  };

  Pool& PoolFor(std::uint8_t pool, Bytes rounded) {
    return pools_[std::size_t{pool} * 2 + (rounded <= kSmallRequest ? 0 : 1)];
  }
  /// Lists are made when a pool is first used: most records name more pools than they use.
  void Use(Pool& pool) {
    if (pool.free.empty()) pool.free.resize(rank_.size());
  }
  FreeList& ListOf(const Block& b) { return pools_[b.pool].free[rank_[b.stream]]; }
  std::uint64_t Tie(const Block& b) const;
  FreeList::Entry EntryOf(BlockId id) const;
  bool Expandable(BlockId id) const { return blocks_[id].reservation != kNone; }
  bool Whole(const Block& b) const { return b.prev == kNone && b.next == kNone; }

  BlockId NewBlock(const Block& like);
  void Drop(BlockId id);
  void Link(BlockId left, BlockId right);
  void InsertFree(BlockId id);
  void InsertUnmapped(BlockId id);
  void EraseUnmapped(BlockId id);
  void BecomeFree(BlockId id);
  void BecomeUnmapped(BlockId id);
  void Absorb(BlockId id, BlockId neighbour);

  std::optional<FreeList::Position> Find(const FreeList& list, Bytes size) const;
  BlockId HandOut(FreeList& list, FreeList::Position at, Bytes size);
  BlockId GrowOrRelease(Pool& pool, std::uint16_t stream, Bytes size, bool capturing);
  BlockId NewSegment(const Block& segment);
  bool WithinLimit(Bytes segment) const {
    return !limits_.limit || counters_.reserved <= *limits_.limit - segment;
  }
  bool WithinCapacity(Bytes more) const {
    return counters_.reserved <= limits_.capacity.value_or(kNoDevice) - more;
  }
  BlockId Grow(Pool& pool, std::uint16_t stream, Bytes size);
  void Reserved(Action action, Address address, Bytes size);
  void GivenBack(Action action, Address address, Bytes size);

  // Giving back.
  void Collect();
  bool ReleaseAvailable(Pool& pool, std::uint16_t stream, Bytes size);
  void ReleaseCached();
  void ReleasePool(Pool& pool);
  void ReleaseSegment(BlockId id);

  // Expandable segments.
  BlockId GrowExpandable(Pool& pool, std::uint16_t stream, Bytes size);
  BlockId FindRoom(Pool& pool, std::uint16_t stream, Bytes size) const;
  BlockId Reserve(Pool& pool, std::uint16_t stream);
  bool Map(BlockId id, Bytes size);
  void Unmap(BlockId id);
  Bytes Growable(BlockId id) const;
  bool Idle(BlockId id) const {
    return id != kNone &&
           (blocks_[id].state == State::kFree || blocks_[id].state == State::kUnmapped);
  }

  const AllocatorRules rules_;
  const DeviceLimits limits_;
  const bool expandable_;
  const bool collects_;
  Driver& driver_;
  /// Position of each stream in the order of cudaStream_t values.
  std::vector<std::uint16_t> rank_;
  std::vector<Pool> pools_;  // small and large of each pool id
  std::vector<std::uint8_t> abandoned_;
  std::vector<Block> blocks_;
  std::vector<BlockId> unused_;
  struct Waiting {
    Ticket ticket = 0;
    BlockId block = 0;
  };
  std::vector<Waiting> pending_;
  Ticket last_ticket_ = 0;
  std::vector<Reservation> reservations_;
  std::vector<DriverCall> calls_;
  std::uint64_t last_number_ = 0;
  AllocatorCounters counters_;
};

}  // namespace plimsoll

#include "allocator/model/caching_allocator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/hash.h"

namespace plimsoll {

CachingAllocator::CachingAllocator(const AllocatorRules& rules, const DeviceLimits& limits,
                                   Driver& driver, std::span<const std::uint64_t> streams,
                                   std::size_t pools)
    : rules_(rules),
      limits_(limits),
      expandable_(rules.settings.expandable_segments),
      collects_(limits.limit.has_value() && rules.settings.garbage_collection_threshold > 0),
      driver_(driver) {
  const std::size_t count = std::max<std::size_t>(streams.size(), 1);
  std::vector<std::uint16_t> order(count);
  std::iota(order.begin(), order.end(), std::uint16_t{0});
  if (!streams.empty()) {
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint16_t a, std::uint16_t b) { return streams[a] < streams[b]; });
  }
  rank_.resize(count);
  for (std::size_t i = 0; i < count; ++i) rank_[order[i]] = static_cast<std::uint16_t>(i);
  pools_.resize(std::max<std::size_t>(pools, 1) * 2);
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    pools_[i].small = i % 2 == 0;
  }
}

// ---- requests

CachingAllocator::BlockId CachingAllocator::Allocate(Bytes requested, std::uint16_t stream,
                                                     std::uint8_t pool_id, bool capturing) {
  if (requested >= kNoDevice) {
    ++counters_.refused;
    return kNone;
  }
  const Bytes size = rules_.Round(requested);
  Pool& pool = PoolFor(pool_id, size);
  Use(pool);
  if (collects_) ++pool.searches;
  FreeList& list = pool.free[rank_[stream]];
  if (const auto found = Find(list, size)) return HandOut(list, *found, size);
  BlockId id = GrowOrRelease(pool, stream, size, capturing);
  if (id == kNone) {
    ++counters_.refused;
    return kNone;
  }
  // What the driver gave goes through the list too: the remainder of the split needs a place there.
  InsertFree(id);
  return HandOut(list, list.Find(EntryOf(id)), size);
}

/// The order of last resorts.
CachingAllocator::BlockId CachingAllocator::GrowOrRelease(Pool& pool, std::uint16_t stream,
                                                          Bytes size, bool capturing) {
  if (collects_) Collect();
  BlockId id = Grow(pool, stream, size);
  if (id == kNone && ReleaseAvailable(pool, stream, size)) id = Grow(pool, stream, size);
  if (id == kNone && !capturing) {
    ReleaseCached();
    ++counters_.retries;
    id = Grow(pool, stream, size);
  }
  return id;
}

/// Only one candidate is looked at: the first block that is large enough. If that one may not be
/// taken, the search fails although others would do.
std::optional<FreeList::Position> CachingAllocator::Find(const FreeList& list, Bytes size) const {
  FreeList::Position at = list.LowerBound({.size = size});
  if (list.AtEnd(at)) return std::nullopt;
  if (Expandable(list.At(at).block)) {
    if (expandable_) {
      // Of blocks that could grow, the one that would grow to the least is taken.
      for (auto next = list.Next(at); !list.AtEnd(next); next = list.Next(next)) {
        const bool smaller = Growable(list.At(next).block) < Growable(list.At(at).block);
        if (!smaller || !Expandable(list.At(at).block)) break;
        at = next;
      }
    } else {
      while (!list.AtEnd(at) && Expandable(list.At(at).block)) at = list.Next(at);
      if (list.AtEnd(at)) return std::nullopt;
    }
  }
  const Bytes most = rules_.settings.max_split_size;
  const Bytes found = list.At(at).size;
  if (size < most && found >= most) return std::nullopt;
  if (size >= most && found >= size + rules_.settings.max_non_split_rounding) return std::nullopt;
  return at;
}

bool CachingAllocator::Serves(Bytes requested, std::uint16_t stream, std::uint8_t pool_id) const {
  const Bytes size = rules_.Round(requested);
  const Pool& pool = pools_[std::size_t{pool_id} * 2 + (size <= kSmallRequest ? 0 : 1)];
  return !pool.free.empty() && Find(pool.free[rank_[stream]], size).has_value();
}

/// Takes the block at `at` out of its list. If it is split, the left part is the new block; what
/// remains keeps its identity, which 2.12 breaks ties by.
CachingAllocator::BlockId CachingAllocator::HandOut(FreeList& list, FreeList::Position at,
                                                    Bytes size) {
  BlockId id = list.At(at).block;
  const Bytes remainder = blocks_[id].size - size;
  if (rules_.Splits(size, remainder, expandable_)) {
    const BlockId rest = id;
    id = NewBlock(blocks_[rest]);
    blocks_[id].size = size;
    Link(blocks_[id].prev, id);
    Link(id, rest);
    Block& right = blocks_[rest];
    right.address += static_cast<Address>(size);
    right.size = remainder;
    right.freed_at_search = pools_[right.pool].searches;
    list.Replace(at, EntryOf(rest));
  } else {
    list.Erase(at);
  }
  Block& b = blocks_[id];
  b.state = State::kAllocated;
  counters_.allocated += b.size;
  counters_.peak_allocated = std::max(counters_.peak_allocated, counters_.allocated);
  return id;
}

void CachingAllocator::Free(BlockId id) {
  PLIMSOLL_CHECK(blocks_[id].state == State::kAllocated);
  counters_.allocated -= blocks_[id].size;
  BecomeFree(id);
}

CachingAllocator::Ticket CachingAllocator::RequestFree(BlockId id) {
  Block& b = blocks_[id];
  PLIMSOLL_CHECK(b.state == State::kAllocated);
  b.state = State::kPending;
  counters_.allocated -= b.size;
  pending_.push_back({++last_ticket_, id});
  return last_ticket_;
}

void CachingAllocator::CompleteFree(Ticket ticket) {
  const auto waiting =
      std::lower_bound(pending_.begin(), pending_.end(), ticket,
                       [](const Waiting& w, Ticket wanted) { return w.ticket < wanted; });
  if (waiting == pending_.end() || waiting->ticket != ticket) return;
  const BlockId id = waiting->block;
  pending_.erase(waiting);
  BecomeFree(id);
}

std::uint64_t CachingAllocator::StateHash() const {
  // In no order: what lies where is one state, however the table came to hold it.
  std::uint64_t state = 0;
  std::vector<std::pair<std::uint64_t, Address>> by_number;
  for (const Block& b : blocks_) {
    if (b.state == State::kUnused) continue;
    const std::uint64_t what = MixHash(static_cast<std::uint64_t>(b.state), b.pool);
    state += MixHash(MixHash(what, b.address), static_cast<std::uint64_t>(b.size));
    if (rules_.version.tie_break != TieBreak::kBlockNumber) continue;
    by_number.emplace_back(b.number, b.address);
  }
  // Numbers grow for ever; it is their order that decides.
  std::ranges::sort(by_number);
  for (const auto& [number, address] : by_number) state = MixHash(state, address);
  state = MixHash(state, static_cast<std::uint64_t>(counters_.driver_allocations));
  return MixHash(state, static_cast<std::uint64_t>(counters_.driver_frees));
}

// ---- the table of blocks

CachingAllocator::BlockId CachingAllocator::NewBlock(const Block& like) {
  Block copy = like;  // it may lie in the table that grows
  if (rules_.version.tie_break == TieBreak::kBlockNumber) copy.number = ++last_number_;
  if (unused_.empty()) {
    blocks_.push_back(copy);
    return static_cast<BlockId>(blocks_.size() - 1);
  }
  const BlockId id = unused_.back();
  unused_.pop_back();
  blocks_[id] = copy;
  return id;
}

/// A block that is a whole segment, or the whole of a reservation. Segments are numbered in the
/// order of their making; 2 TiB, the most one can span, fit below the next number.
CachingAllocator::BlockId CachingAllocator::NewSegment(const Block& segment) {
  const BlockId id = NewBlock(segment);
  if (rules_.version.tie_break == TieBreak::kSegmentNumber) {
    const Address units = segment.address / static_cast<Address>(kMinBlock);
    blocks_[id].number = (++last_number_ << 32) - units;
  }
  return id;
}

void CachingAllocator::Drop(BlockId id) {
  blocks_[id].state = State::kUnused;
  unused_.push_back(id);
}

void CachingAllocator::Link(BlockId left, BlockId right) {
  if (left != kNone) blocks_[left].next = right;
  if (right != kNone) blocks_[right].prev = left;
}

std::uint64_t CachingAllocator::Tie(const Block& b) const {
  switch (rules_.version.tie_break) {
    case TieBreak::kAddress:
      return b.address;
    case TieBreak::kBlockNumber:
      return b.number;
    case TieBreak::kSegmentNumber:
      return b.number + b.address / static_cast<Address>(kMinBlock);
  }
  return b.address;
}

FreeList::Entry CachingAllocator::EntryOf(BlockId id) const {
  return {.size = blocks_[id].size, .tie = Tie(blocks_[id]), .block = id};
}

void CachingAllocator::InsertFree(BlockId id) {
  Block& b = blocks_[id];
  b.state = State::kFree;
  b.freed_at_search = pools_[b.pool].searches;
  ListOf(b).Insert(EntryOf(id));
}

/// Joins free neighbours and enters the list, in place of one of them if there is one: the block
/// that was freed survives.
void CachingAllocator::BecomeFree(BlockId id) {
  Block& b = blocks_[id];
  b.state = State::kFree;
  b.freed_at_search = pools_[b.pool].searches;
  FreeList& list = ListOf(b);
  const auto free = [&](BlockId n) { return n != kNone && blocks_[n].state == State::kFree; };
  const bool both = free(b.prev) && free(b.next);
  const BlockId replaced = free(b.next) ? b.next : free(b.prev) ? b.prev : kNone;
  if (both) list.Erase(EntryOf(b.prev));
  const FreeList::Entry old = replaced == kNone ? FreeList::Entry{} : EntryOf(replaced);
  if (free(b.prev)) Absorb(id, b.prev);
  if (free(b.next)) Absorb(id, b.next);
  if (replaced == kNone) {
    list.Insert(EntryOf(id));
  } else {
    list.Replace(list.Find(old), EntryOf(id));
  }
}

/// Takes in a neighbour that is in no list any more.
void CachingAllocator::Absorb(BlockId id, BlockId neighbour) {
  Block& b = blocks_[id];
  const Block& n = blocks_[neighbour];
  if (b.prev == neighbour) {
    b.address = n.address;
    Link(n.prev, id);
    b.prev = n.prev;
  } else {
    Link(id, n.next);
    b.next = n.next;
  }
  b.size += n.size;
  Drop(neighbour);
}

}  // namespace plimsoll

// Memory from the driver, and back to it.
#include <algorithm>

#include "allocator/model/caching_allocator.h"

namespace plimsoll {

/// A new block that is in no list, or kNone.
CachingAllocator::BlockId CachingAllocator::Grow(Pool& pool, std::uint16_t stream, Bytes size) {
  const Bytes segment = rules_.SegmentFor(size);
  if (!WithinLimit(segment)) return kNone;
  const auto index = static_cast<std::uint16_t>(&pool - pools_.data());
  const bool may_expand = PoolOf(index) == 0 || rules_.version.private_pools_expand;
  if (expandable_ && may_expand) return GrowExpandable(pool, stream, size);
  if (!WithinCapacity(segment)) return kNone;
  const Address address = driver_.NewSegment(segment);
  Reserved(Action::kSegmentAlloc, address, segment);
  return NewSegment({.address = address, .size = segment, .stream = stream, .pool = index});
}

void CachingAllocator::Reserved(Action action, Address address, Bytes size) {
  counters_.reserved += size;
  counters_.peak_reserved = std::max(counters_.peak_reserved, counters_.reserved);
  ++counters_.driver_allocations;
  counters_.driver_us += DriverMicroseconds(action, size, rules_.settings.large_segment_size);
  calls_.push_back({action, address, size});
}

void CachingAllocator::GivenBack(Action action, Address address, Bytes size) {
  counters_.reserved -= size;
  counters_.given_back += size;
  ++counters_.driver_frees;
  counters_.driver_us += DriverMicroseconds(action, size, rules_.settings.large_segment_size);
  calls_.push_back({action, address, size});
}

/// The segment of a free block that fills it.
void CachingAllocator::ReleaseSegment(BlockId id) {
  const Block& b = blocks_[id];
  ListOf(b).Erase(EntryOf(id));
  GivenBack(Action::kSegmentFree, b.address, b.size);
  driver_.FreeSegment(b.address, b.size);
  Drop(id);
}

std::optional<Bytes> CachingAllocator::CollectionThreshold() const {
  if (!collects_) return std::nullopt;
  return static_cast<Bytes>(rules_.settings.garbage_collection_threshold *
                            static_cast<double>(*limits_.limit));
}

/// Gives back segments of the default large pool that were free for longer than the average, round
/// by round, until the share that the threshold allows is reached. A round does not stop there.
void CachingAllocator::Collect() {
  const Bytes threshold = *CollectionThreshold();
  if (counters_.reserved <= threshold) return;
  const Bytes target = counters_.reserved - threshold;
  Pool& pool = pools_[1];
  std::vector<BlockId> candidates;
  double ages = 0;
  const auto age = [&](BlockId id) {
    return static_cast<double>(pool.searches - blocks_[id].freed_at_search);
  };
  for (const FreeList& list : pool.free) {
    for (auto at = list.First(); !list.AtEnd(at); at = list.Next(at)) {
      const BlockId id = list.At(at).block;
      if (!Whole(blocks_[id])) continue;
      candidates.push_back(id);
      ages += age(id);
    }
  }
  Bytes collected = 0;
  for (bool any = true; any && collected < target && !candidates.empty();) {
    any = false;
    const double average = ages / static_cast<double>(candidates.size());
    std::vector<BlockId> kept;
    for (const BlockId id : candidates) {
      if (Expandable(id) || age(id) < average) {
        kept.push_back(id);
        continue;
      }
      any = true;
      collected += blocks_[id].size;
      ages -= age(id);
      ReleaseSegment(id);
    }
    candidates = std::move(kept);
  }
}

/// With max_split_size set, oversize blocks of the same pool and stream are given back first: the
/// smallest that suffices, or else the largest ones until their sum does.
bool CachingAllocator::ReleaseAvailable(Pool& pool, std::uint16_t stream, Bytes size) {
  const Bytes oversize = rules_.settings.max_split_size;
  if (oversize == kUnlimited) return false;
  FreeList& list = pool.free[rank_[stream]];
  const Bytes wanted = std::max(size, oversize);
  const FreeList::Position enough = list.LowerBound({.size = wanted});
  if (!list.AtEnd(enough)) {
    const BlockId id = list.At(enough).block;
    if (Expandable(id) || !Whole(blocks_[id])) return false;
    ReleaseSegment(id);
    return true;
  }
  std::vector<BlockId> largest_first;
  Bytes sum = 0;
  if (!list.Empty()) {
    for (auto at = list.Last(); sum < wanted && list.At(at).size >= oversize;
         at = list.Previous(at)) {
      const BlockId id = list.At(at).block;
      if (!Expandable(id) && Whole(blocks_[id])) {
        largest_first.push_back(id);
        sum += blocks_[id].size;
      }
      if (list.AtBeginning(at)) break;
    }
  }
  for (const BlockId id : largest_first) ReleaseSegment(id);
  return sum >= wanted;
}

/// Everything that can be given back: first the frees that wait for other streams are waited for.
void CachingAllocator::ReleaseCached() {
  for (const Waiting& waiting : pending_) BecomeFree(waiting.block);
  pending_.clear();
  ReleasePool(pools_[1]);
  ReleasePool(pools_[0]);
  for (const std::uint8_t pool : abandoned_) {
    ReleasePool(pools_[std::size_t{pool} * 2]);
    ReleasePool(pools_[std::size_t{pool} * 2 + 1]);
  }
}

void CachingAllocator::ReleasePool(Pool& pool) {
  std::vector<BlockId> segments;
  std::vector<BlockId> expandable;
  for (const FreeList& list : pool.free) {
    for (auto at = list.First(); !list.AtEnd(at); at = list.Next(at)) {
      const BlockId id = list.At(at).block;
      if (Expandable(id)) {
        expandable.push_back(id);
      } else if (Whole(blocks_[id])) {
        segments.push_back(id);
      }
    }
  }
  for (const BlockId id : segments) ReleaseSegment(id);
  for (const BlockId id : expandable) Unmap(id);
}

void CachingAllocator::AbandonPool(std::uint8_t pool) {
  if (pool != 0 && std::find(abandoned_.begin(), abandoned_.end(), pool) == abandoned_.end()) {
    abandoned_.push_back(pool);
  }
}

// ---- the state before a record

std::vector<std::uint32_t> CachingAllocator::Seed(const SeedSegment& segment) {
  Block like{.address = segment.address,
             .size = segment.size,
             .stream = segment.stream,
             .pool = static_cast<std::uint16_t>(segment.pool * 2 + (segment.small ? 0 : 1))};
  Use(pools_[like.pool]);
  if (segment.expandable) {
    const Bytes page = segment.small ? kSmallSegment : rules_.settings.large_segment_size;
    reservations_.push_back({.base = segment.address, .page = page});
    like.reservation = static_cast<std::uint32_t>(reservations_.size() - 1);
  }
  driver_.Occupy(segment.address, segment.size, segment.expandable);
  std::vector<std::uint32_t> ids;
  BlockId last = kNone;
  Bytes held = 0;
  const auto add = [&](Address from, Address to, State state) {
    like.address = from;
    like.size = static_cast<Bytes>(to - from);
    like.prev = kNone;
    const BlockId id = last == kNone ? NewSegment(like) : NewBlock(like);
    // The number of a segment is that of all its blocks; that of a block is its own.
    const bool shared = rules_.version.tie_break == TieBreak::kSegmentNumber;
    if (last != kNone && shared) blocks_[id].number = blocks_[last].number;
    Link(last, id);
    last = id;
    blocks_[id].state = state;
    if (state != State::kUnmapped) held += like.size;
    if (state == State::kFree) InsertFree(id);
    if (state == State::kUnmapped) InsertUnmapped(id);
    if (state == State::kAllocated) counters_.allocated += like.size;
    return id;
  };
  Address at = segment.address;
  const Address end = segment.address + static_cast<Address>(segment.size);
  for (const SeedPiece& piece : segment.pieces) {
    const Address piece_end = piece.address + static_cast<Address>(piece.size);
    // A record that contradicts itself loses the piece, not the program.
    if (piece.address < at || piece_end > end || piece.size <= 0) {
      ids.push_back(kNone);
      continue;
    }
    if (piece.address > at) add(at, piece.address, State::kFree);
    const BlockId id = add(piece.address, piece_end, piece.state);
    if (piece.state == State::kPending) pending_.push_back({++last_ticket_, id});
    ids.push_back(piece.state == State::kPending ? last_ticket_ : id);
    at = piece_end;
  }
  if (at < end) add(at, end, State::kFree);
  counters_.reserved += held;
  counters_.peak_reserved = std::max(counters_.peak_reserved, counters_.reserved);
  counters_.peak_allocated = std::max(counters_.peak_allocated, counters_.allocated);
  return ids;
}

}  // namespace plimsoll

// Expandable segments: addresses reserved once for each pool and stream, and mapped page by page.
#include <algorithm>

#include "allocator/model/caching_allocator.h"

namespace plimsoll {

Bytes CachingAllocator::ReservationSize(bool small) const {
  const Bytes page = small ? kSmallSegment : rules_.settings.large_segment_size;
  const Bytes wanted = limits_.total + limits_.total / 8;
  return (wanted + page - 1) / page * page;
}

/// What a free block could grow to, if pages behind it were mapped.
Bytes CachingAllocator::Growable(BlockId id) const {
  const Block& b = blocks_[id];
  const bool grows = b.next != kNone && blocks_[b.next].state == State::kUnmapped;
  return b.size + (grows ? blocks_[b.next].size : 0);
}

/// Unmapped pieces are few: the search walks them, and so a sorted vector serves.
void CachingAllocator::InsertUnmapped(BlockId id) {
  Block& b = blocks_[id];
  b.state = State::kUnmapped;
  std::vector<BlockId>& list = pools_[b.pool].unmapped;
  const auto before = [&](BlockId x, BlockId y) {
    const Block& p = blocks_[x];
    const Block& q = blocks_[y];
    return p.stream != q.stream ? rank_[p.stream] < rank_[q.stream] : p.address < q.address;
  };
  list.insert(std::lower_bound(list.begin(), list.end(), id, before), id);
}

void CachingAllocator::EraseUnmapped(BlockId id) {
  std::vector<BlockId>& list = pools_[blocks_[id].pool].unmapped;
  list.erase(std::find(list.begin(), list.end(), id));
}

/// The first hole, by address, where enough lies in a row: beginning at the free block before it,
/// and across free blocks between holes.
CachingAllocator::BlockId CachingAllocator::FindRoom(Pool& pool, std::uint16_t stream,
                                                     Bytes size) const {
  BlockId last = kNone;  // of the row that was looked at
  for (const BlockId hole : pool.unmapped) {
    if (blocks_[hole].stream != stream) continue;
    // A later hole of a row that is too short has even less behind it.
    const bool seen = last != kNone && blocks_[hole].reservation == blocks_[last].reservation &&
                      blocks_[hole].address <= blocks_[last].address;
    if (seen) continue;
    const BlockId first = Idle(blocks_[hole].prev) ? blocks_[hole].prev : hole;
    Bytes room = 0;
    for (BlockId at = first; room < size && Idle(at); at = blocks_[at].next) {
      room += blocks_[at].size;
      last = at;
    }
    if (room >= size) return first;
  }
  return kNone;
}

CachingAllocator::BlockId CachingAllocator::Reserve(Pool& pool, std::uint16_t stream) {
  const Bytes size = ReservationSize(pool.small);
  const auto index = static_cast<std::uint16_t>(&pool - pools_.data());
  const Address base = driver_.NewReservation(
      {.size = size, .stream = stream, .pool = PoolOf(index), .small = pool.small});
  const Bytes page = pool.small ? kSmallSegment : rules_.settings.large_segment_size;
  reservations_.push_back({.base = base, .page = page});
  const BlockId id =
      NewSegment({.address = base,
                  .size = size,
                  .reservation = static_cast<std::uint32_t>(reservations_.size() - 1),
                  .stream = stream,
                  .pool = index});
  InsertUnmapped(id);
  return id;
}

CachingAllocator::BlockId CachingAllocator::GrowExpandable(Pool& pool, std::uint16_t stream,
                                                           Bytes size) {
  BlockId id = FindRoom(pool, stream, size);
  if (id == kNone) id = Reserve(pool, stream);
  if (blocks_[id].size < size && blocks_[id].state == State::kUnmapped &&
      blocks_[id].next == kNone) {
    return kNone;  // more than the device's own memory
  }
  if (blocks_[id].state == State::kUnmapped && !Map(id, std::min(blocks_[id].size, size))) {
    return kNone;
  }
  while (blocks_[id].size < size) {
    const BlockId next = blocks_[id].next;
    // What was mapped for an earlier hole stays, free, if a later one fails.
    if (!Map(next, std::min(size - blocks_[id].size, blocks_[next].size))) return kNone;
    id = next;
  }
  ListOf(blocks_[id]).Erase(EntryOf(id));
  return id;
}

/// Maps whole pages from the start of a hole; all of them or none.
bool CachingAllocator::Map(BlockId id, Bytes size) {
  const Reservation& segment = reservations_[blocks_[id].reservation];
  const Bytes offset = static_cast<Bytes>(blocks_[id].address - segment.base);
  const Bytes end = (offset + size + segment.page - 1) / segment.page * segment.page;
  // A record that contradicts itself may hold holes that are no whole pages.
  const Bytes mapped = std::min(end - offset, blocks_[id].size);
  if (!WithinCapacity(mapped)) return false;
  EraseUnmapped(id);
  if (mapped < blocks_[id].size) {
    Block rest = blocks_[id];
    rest.address += static_cast<Address>(mapped);
    rest.size -= mapped;
    const BlockId hole = NewBlock(rest);
    Link(hole, rest.next);
    Link(id, hole);
    InsertUnmapped(hole);
    blocks_[id].size = mapped;
  }
  Reserved(Action::kSegmentMap, blocks_[id].address, mapped);
  BecomeFree(id);
  return true;
}

/// Gives back the pages that lie wholly inside a free block; what is left of it on either side
/// stays free.
void CachingAllocator::Unmap(BlockId id) {
  const Reservation& segment = reservations_[blocks_[id].reservation];
  const Bytes from = static_cast<Bytes>(blocks_[id].address - segment.base);
  const Bytes to = from + blocks_[id].size;
  const Bytes first = (from + segment.page - 1) / segment.page * segment.page;
  const Bytes last = to / segment.page * segment.page;
  if (last <= first) return;
  ListOf(blocks_[id]).Erase(EntryOf(id));
  if (first > from) {
    const BlockId left = NewBlock(blocks_[id]);
    blocks_[left].size = first - from;
    Link(blocks_[left].prev, left);
    Link(left, id);
    InsertFree(left);
  }
  if (to > last) {
    const BlockId right = NewBlock(blocks_[id]);
    blocks_[right].address = segment.base + static_cast<Address>(last);
    blocks_[right].size = to - last;
    Link(right, blocks_[right].next);
    Link(id, right);
    InsertFree(right);
  }
  blocks_[id].address = segment.base + static_cast<Address>(first);
  blocks_[id].size = last - first;
  GivenBack(Action::kSegmentUnmap, blocks_[id].address, last - first);
  BecomeUnmapped(id);
}

/// Joins the holes beside it. A reservation of which nothing is mapped any more goes too.
void CachingAllocator::BecomeUnmapped(BlockId id) {
  for (const BlockId neighbour : {blocks_[id].prev, blocks_[id].next}) {
    if (neighbour == kNone || blocks_[neighbour].state != State::kUnmapped) continue;
    EraseUnmapped(neighbour);
    Absorb(id, neighbour);
  }
  if (Whole(blocks_[id])) {
    driver_.FreeReservation(blocks_[id].address);
    Drop(id);
  } else {
    InsertUnmapped(id);
  }
}

}  // namespace plimsoll

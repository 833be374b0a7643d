#include "allocator/replay/fragmentation.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace plimsoll {
namespace {

using ModelBlock = CachingAllocator::Block;
using BlockId = CachingAllocator::BlockId;
using State = CachingAllocator::State;
constexpr BlockId kNoBlockId = CachingAllocator::kNone;

class Census {
 public:
  Census(const Replayer& replayer, const Ledger& ledger, const Request& request)
      : allocator_(replayer.allocator()),
        ledger_(ledger),
        owners_(replayer.Owners()),
        request_(request) {}

  Fragmentation Run() {
    result_.reserved = allocator_.counters().reserved;
    const auto blocks = allocator_.blocks();
    for (BlockId id = 0; id < blocks.size(); ++id) {
      const ModelBlock& b = blocks[id];
      if (b.state != State::kUnused && b.prev == kNoBlockId) Chain(id);
    }
    std::sort(result_.pinned.begin(), result_.pinned.end(), [](const Pinned& a, const Pinned& b) {
      return a.free != b.free ? a.free > b.free : a.segment < b.segment;
    });
    for (const auto& [key, value] : largest_) result_.largest_free.push_back(value);
    return std::move(result_);
  }

 private:
  /// A segment from its first block on; an expandable one falls into runs between its holes.
  void Chain(BlockId first) {
    Pinned run;
    for (BlockId id = first; id != kNoBlockId; id = allocator_.block(id).next) {
      const ModelBlock& b = allocator_.block(id);
      if (b.state == State::kUnmapped) {
        Close(run, allocator_.block(first));
        run = {};
        continue;
      }
      if (run.segment_size == 0) run.segment = b.address;
      run.segment_size += b.size;
      if (b.state == State::kFree) {
        run.free += b.size;
        run.largest_free = std::max(run.largest_free, b.size);
        NoteLargest(b);
      } else {
        run.used += b.size;
        Use(id, b, run);
      }
    }
    Close(run, allocator_.block(first));
  }

  void Use(BlockId id, const ModelBlock& b, Pinned& run) {
    if (b.state == State::kPending) {
      Add(Waste::kPending, b.size);
      return;
    }
    const std::uint32_t owner = owners_[id];
    if (owner == Ledger::kNoAllocation) {
      result_.requested += b.size;
      return;
    }
    const Allocation& a = ledger_.allocations[owner];
    const Bytes rounded = std::min(allocator_.rules().Round(a.requested), b.size);
    const Bytes requested = std::min(a.requested, rounded);
    result_.requested += requested;
    Add(Waste::kRounding, rounded - requested);
    Add(Waste::kTails, b.size - rounded);
    if (run.allocation == Ledger::kNoAllocation ||
        a.released > ledger_.allocations[run.allocation].released) {
      run.allocation = owner;
    }
  }

  /// Books the free bytes of a finished segment or run.
  void Close(const Pinned& run, const ModelBlock& like) {
    if (run.free == 0) return;
    const bool expandable = like.reservation != kNoBlockId;
    if (allocator_.PoolOf(like.pool) != request_.pool) {
      Add(Waste::kOtherPools, run.free);
    } else if (like.stream != request_.stream) {
      Add(Waste::kOtherStreams, run.free);
    } else if (run.used == 0) {
      Add(Waste::kCached, run.free);
    } else if (allocator_.IsSmall(like.pool)) {
      Add(Waste::kSmallSegments, run.free);
    } else if (!expandable && run.segment_size == allocator_.rules().settings.large_segment_size) {
      Add(Waste::kSharedSegments, run.free);
    } else {
      Add(Waste::kPinned, run.free);
    }
    if (run.used > 0 && run.allocation != Ledger::kNoAllocation) result_.pinned.push_back(run);
  }

  void NoteLargest(const ModelBlock& b) {
    const std::uint8_t pool = allocator_.PoolOf(b.pool);
    const bool small = allocator_.IsSmall(b.pool);
    LargestFree& entry = largest_[{pool, b.stream, small}];
    entry.pool = pool;
    entry.stream = b.stream;
    entry.small = small;
    entry.size = std::max(entry.size, b.size);
    entry.free += b.size;
  }

  void Add(Waste waste, Bytes bytes) { result_.waste[static_cast<std::size_t>(waste)] += bytes; }

  const CachingAllocator& allocator_;
  const Ledger& ledger_;
  const std::vector<std::uint32_t> owners_;
  const Request& request_;
  std::map<std::tuple<std::uint8_t, std::uint16_t, bool>, LargestFree> largest_;
  Fragmentation result_;
};

}  // namespace

std::string_view WasteName(Waste waste) {
  constexpr std::array<std::string_view, kWastes> kNames = {
      "rounding", "tails",         "pending",     "small_segments", "shared_segments",
      "pinned",   "other_streams", "other_pools", "cached"};
  return kNames[static_cast<std::size_t>(waste)];
}

Fragmentation Fragments(const Replayer& replayer, const Ledger& ledger, const Request& request) {
  return Census(replayer, ledger, request).Run();
}

}  // namespace plimsoll

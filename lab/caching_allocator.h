// A small model of PyTorch's caching allocator with its default settings, so that a generated run
// has the addresses, segments and splits of a real one. It shares no code with src/allocator, which
// is measured on what this makes.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace plimsoll::bench {

enum class What : std::uint8_t { kAlloc, kFreeRequested, kFreeCompleted, kSegmentAlloc };

struct Event {
  std::uint64_t address = 0;
  std::int64_t size = 0;
  std::int64_t time_us = 0;
  std::uint32_t stack = 0;
  /// Events with the same number share one traceback object.
  std::uint32_t context = 0;
  What what = What::kAlloc;
};

struct Segment {
  std::uint64_t address = 0;
  std::int64_t size = 0;
  bool small = false;
  std::uint32_t stack = 0;
  std::uint32_t context = 0;
};

struct Block {
  std::int64_t size = 0;
  std::int64_t requested = 0;
  enum { kFree, kUsed, kPending } state = kFree;
  std::uint32_t segment = 0;
  std::uint32_t stack = 0;
  std::uint32_t context = 0;
};

class CachingAllocator {
 public:
  /// Records at most `limit` events; what is asked for after that does not happen.
  explicit CachingAllocator(std::size_t limit) : limit_(limit) { events_.reserve(limit); }

  std::uint64_t Allocate(std::int64_t requested, std::uint32_t stack);
  void Free(std::uint64_t address, std::uint32_t stack);

  bool full() const { return events_.size() >= limit_; }
  std::int64_t now() const { return now_; }
  const std::vector<Event>& events() const { return events_; }
  const std::vector<Segment>& segments() const { return segments_; }
  /// Every block by address, free or not.
  const std::map<std::uint64_t, Block>& blocks() const { return blocks_; }

 private:
  using FreeList = std::set<std::pair<std::int64_t, std::uint64_t>>;  // size, address: best fit

  std::uint64_t NewSegment(std::int64_t size, std::uint32_t stack);
  void Record(What what, std::uint64_t address, std::int64_t size, std::uint32_t stack,
              std::uint32_t context);
  FreeList& ListOf(const Block& block) { return segments_[block.segment].small ? small_ : large_; }

  std::size_t limit_;
  std::vector<Event> events_;
  std::vector<Segment> segments_;
  std::map<std::uint64_t, Block> blocks_;
  FreeList small_;
  FreeList large_;
  std::uint64_t next_segment_ = 0x7f2000000000;
  std::int64_t now_ = 1794702158000000;
  std::uint32_t next_context_ = 0;
};

}  // namespace plimsoll::bench

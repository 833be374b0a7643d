// The nouns of a recorded run on one device. Plain structs; no reading, no judgement.
//
// A Timeline holds what the record says: the events in order, the stacks they came from, the
// segments and blocks that were there when the record was made. What follows from it (which
// allocation each free ends, how large each block really was) is computed by allocator/ledger.h.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/interner.h"

namespace plimsoll {

/// An address on the device. Some drivers use all 64 bits.
using Address = std::uint64_t;
/// Microseconds since 1970; 0 where the record has no times (before PyTorch 2.2).
using TimeUs = std::int64_t;
/// Position of an event in Timeline::events.
using EventIndex = std::uint32_t;
inline constexpr EventIndex kNever = 0xffffffffu;
/// A position among the events: kBefore is before the first, kNotYet after the last.
using Position = std::int32_t;
inline constexpr Position kBefore = -1;
inline constexpr Position kNotYet = std::numeric_limits<Position>::max();

using FrameId = Id<struct FrameTag>;
using StackId = Id<struct StackTag>;

struct Frame {
  StringId function;
  StringId file;
  std::int32_t line = 0;
  /// Of compiled code: the node of the graph that it was written for, "mm: aten.mm.default".
  StringId node = {};

  friend bool operator==(const Frame&, const Frame&) = default;
};

/// Every distinct frame and every distinct stack once. A stack lists its frames innermost first.
class StackTable {
 public:
  FrameId AddFrame(const Frame& frame) {
    frames_.push_back(frame);
    return FrameId(frames_.size() - 1);
  }
  StackId AddStack(std::span<const FrameId> frames) {
    starts_.push_back(entries_.size());
    entries_.insert(entries_.end(), frames.begin(), frames.end());
    return StackId(starts_.size() - 1);
  }
  const Frame& frame(FrameId id) const { return frames_[id.index()]; }
  std::span<const FrameId> stack(StackId id) const {
    if (!id.valid()) return {};
    const std::size_t begin = starts_[id.index()];
    const std::size_t end =
        id.index() + 1 < starts_.size() ? starts_[id.index() + 1] : entries_.size();
    return std::span(entries_).subspan(begin, end - begin);
  }
  std::size_t frame_count() const { return frames_.size(); }
  std::size_t stack_count() const { return starts_.size(); }

  StringTable strings;

 private:
  std::vector<Frame> frames_;
  std::vector<FrameId> entries_;
  std::vector<std::size_t> starts_;
};

enum class Action : std::uint8_t {
  kAlloc,
  kFreeRequested,  // the program let go; another stream may still use the block
  kFreeCompleted,  // the block went back to the allocator's free lists
  kSegmentAlloc,   // cudaMalloc
  kSegmentFree,    // cudaFree
  kSegmentMap,     // pages mapped into an expandable segment
  kSegmentUnmap,
  kOutOfMemory,
  kSnapshot,
  kAnnotate,  // text tied to a live block (2.14 and newer); in Timeline::notes
  kOther,     // an action that this version does not know; kept so that indices stay true
};

struct Event {
  /// Of an out-of-memory event: the free bytes that the driver reported.
  Address address = 0;
  /// Of an allocation or a free: the bytes that the program asked for, not the block's.
  Bytes size = 0;
  TimeUs time_us = 0;
  StackId stack;
  /// Index into Timeline::streams.
  std::uint16_t stream = 0;
  /// Index into Timeline::pools; 0 is the default pool, or unknown.
  std::uint8_t pool = 0;
  Action action = Action::kOther;
};
static_assert(sizeof(Event) == 32, "a million events should stay small");

/// A memory pool: (0,0) is the default one, others belong to CUDA graphs or to a MemPool.
struct PoolId {
  std::int64_t first = 0;
  std::int64_t second = 0;
  friend auto operator<=>(const PoolId&, const PoolId&) = default;
};

enum class BlockState : std::uint8_t { kActive, kPendingFree, kInactive };

/// A block at the moment when the record was made.
struct Block {
  Address address = 0;
  Bytes size = 0;
  Bytes requested = 0;
  BlockState state = BlockState::kInactive;
  StackId stack;
  /// The variable that kept it, where the process was asked for that.
  StringId owner;
};

/// A segment at the moment when the record was made; its blocks lie in Timeline::blocks.
struct Segment {
  Address address = 0;
  Bytes size = 0;
  std::uint16_t stream = 0;
  std::uint8_t pool = 0;
  bool small = false;
  bool expandable = false;
  StackId stack;
  std::size_t first_block = 0;
  std::size_t block_count = 0;
};

/// The allocator's settings as far as the record has them.
struct RecordedSettings {
  /// The string of PYTORCH_CUDA_ALLOC_CONF, as set.
  std::string conf;
  std::optional<Bytes> max_split_size;
  std::optional<Bytes> max_non_split_rounding;
  std::optional<Bytes> large_segment_size;
  std::optional<double> garbage_collection_threshold;
  std::optional<bool> expandable_segments;
  /// One entry for each power of two from 1 MiB to 32 GiB; 0 is no rounding.
  std::array<std::int64_t, 16> roundup_power2_divisions{};
  /// What `plimsoll run --budget` allowed the process to take of the device.
  std::optional<Bytes> budget;
  /// The ring of the events was full, and the oldest were overwritten; how many it has room for.
  bool trace_overflowed = false;
  std::optional<std::int64_t> trace_max_entries;
};

/// A range or instant that the program marked (record_function, from PyTorch 2.5).
struct Annotation {
  StringId name;
  bool start = true;
  TimeUs time_us = 0;
};

/// Text that the program attached to an event (_set_memory_metadata, from PyTorch 2.10).
struct EventNote {
  EventIndex event = 0;
  StringId text;
};

/// What somebody says that a block is for which was there when the record was made.
struct BlockNote {
  Address address = 0;
  StringId text;
};

/// Page-locked memory of the host, which PyTorch's allocator of it keeps (recorded with
/// record_pinned_host_memory=True, 2.14 and newer).
struct PinnedMemory {
  struct Piece {
    Address address = 0;
    Bytes size = 0;
    bool in_use = false;
  };
  std::vector<Event> events;
  /// When the record was made. They are never split.
  std::vector<Piece> pieces;

  bool empty() const { return events.empty() && pieces.empty(); }
};

/// The line of the forward pass that an event of the backward thread belongs to (2.11 and newer).
struct ForwardStack {
  EventIndex event = 0;
  StackId stack;
};

/// Figures that the record itself states, right after an event (torch.profiler does).
struct Totals {
  EventIndex event = 0;
  Bytes allocated = 0;
  Bytes reserved = 0;
};

struct Timeline {
  std::int32_t device = 0;
  std::vector<Event> events;
  std::vector<Segment> segments;
  std::vector<Block> blocks;
  StackTable stacks;
  /// cudaStream_t values in order of first use; Event::stream indexes this.
  std::vector<std::uint64_t> streams;
  std::vector<PoolId> pools = {PoolId{}};
  RecordedSettings settings;
  std::vector<Annotation> annotations;
  std::vector<EventNote> notes;
  /// Of a run that was predicted and never ran: what was predicted. Empty for records.
  std::string prediction;
  /// What the prediction says that each block is for, by CategoryName; in order of events.
  std::vector<EventNote> purposes;
  std::vector<ForwardStack> forward_stacks;
  /// What torch.compile was at when an event was recorded: "Torch-Compiled Region: 0/1".
  std::vector<EventNote> compile_contexts;
  /// Categories that the record itself gives: of events, and of blocks.
  std::vector<EventNote> given_categories;
  std::vector<BlockNote> given_of_blocks;
  std::vector<Totals> totals;
  /// Whether the events carry their pool (PyTorch 2.12 and newer).
  bool events_have_pools = false;
  /// What the producing release can be told from (keys present): "2.11", "2.2 to 2.9", or "".
  std::string torch;
  /// Bytes of pinned host memory that the record lists beside the device's.
  Bytes host_reserved = 0;
  /// The same in detail; of several devices of one process the first has it.
  PinnedMemory pinned;

  /// The first broken invariant in words, or nothing.
  std::optional<std::string> Validate() const;
};

}  // namespace plimsoll

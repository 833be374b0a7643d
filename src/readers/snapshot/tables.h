// The rows that the dicts and lists of a memory snapshot become while it is read, and what is made
// of them at the end.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "files/read_budget.h"
#include "readers/snapshot/value.h"
#include "readers/snapshot/words.h"
#include "timeline/recording.h"
#include "timeline/stack_builder.h"

namespace plimsoll::snapshot {

/// Adds a row to a table, as long as the file may have one more.
template <typename Row, typename... Args>
void AddRow(ReadBudget& budget, std::vector<Row>& table, Args&&... args) {
  if (budget.Take(sizeof(Row))) table.emplace_back(std::forward<Args>(args)...);
  if (table.empty()) table.emplace_back();  // whatever follows finds a row
}

/// What was left out, by reason.
class SkipCounts {
 public:
  /// A file can have a hundred million of them, so a reason is known by its address.
  void Count(const char* what) {
    for (auto& [reason, count] : counts_) {
      if (reason == what) return void(++count);
    }
    counts_.emplace_back(what, 1);
  }
  void AddTo(Recording& recording) const {
    for (const auto& [what, count] : counts_) recording.skipped[what] += count;
  }

 private:
  std::vector<std::pair<const char*, std::int64_t>> counts_;
};

/// The streams of a document, numbered as they come.
class StreamTable {
 public:
  /// Nearly every event names the stream of the one before.
  std::uint16_t IndexOf(std::uint64_t stream, SkipCounts& skipped) {
    return stream == last_ && !streams_.empty() ? last_index_ : Find(stream, skipped);
  }
  const std::vector<std::uint64_t>& all() const { return streams_; }

 private:
  std::uint16_t Find(std::uint64_t stream, SkipCounts& skipped);

  std::vector<std::uint64_t> streams_;
  HashMap<std::uint64_t, std::uint16_t> index_;
  std::uint64_t last_ = 0;
  std::uint16_t last_index_ = 0;
};

/// The private pools of a document, numbered as they come; the first is PyTorch's own.
class PoolTable {
 public:
  std::uint8_t IndexOf(PoolId id, SkipCounts& skipped);
  const std::vector<PoolId>& all() const { return pools_; }

 private:
  std::vector<PoolId> pools_ = {PoolId{}};
};

/// Rows are made in the order of the document, so a list of them is a range.
struct RowRange {
  std::size_t first = 0;
  std::size_t count = 0;
  bool taken = false;  // each list becomes part of one timeline only
};
inline constexpr std::size_t kNoList = std::numeric_limits<std::size_t>::max();

struct SegmentRow {
  Segment segment;
  std::int32_t device = 0;
  std::size_t block_list = kNoList;
};

struct HistoryRow {
  Bytes real_size = 0;
  StackId stack;
};

struct SnapshotRow {
  Value segments, traces, settings, annotations, host_segments, host_traces, categories, prediction,
      torch;
};

struct Tables {
  /// The file's size bounds what it can legitimately ask for.
  explicit Tables(InputSize file) : budget(file), stack_budget(ShareOf(file)) {}

  ReadBudget budget;
  StackBudget stack_budget;
  StackTable stacks;

  std::vector<Event> events;
  std::vector<EventNote> notes;
  std::vector<EventNote> purposes;
  std::vector<ForwardStack> forward;
  std::vector<Block> blocks;
  std::vector<SegmentRow> segments;
  std::vector<HistoryRow> histories;
  std::vector<std::pair<Annotation, std::int32_t>> annotations;
  std::vector<PinnedMemory::Piece> host_segments;
  std::vector<EventNote> contexts;
  std::vector<EventNote> given;
  std::vector<std::pair<EventIndex, std::int64_t>> given_by_number;  // of the document's list
  std::vector<std::pair<std::size_t, StringId>> given_of_blocks;     // by row
  std::vector<RowRange> lists;
  std::vector<std::vector<std::size_t>> traces;
  std::vector<PoolId> pairs;
  std::vector<std::vector<StringId>> string_lists;
  std::vector<SnapshotRow> snapshots;
  RecordedSettings settings;
  std::array<std::int64_t, 16> divisions{};

  StreamTable streams;
  PoolTable pools;
  std::array<bool, kKeyCount> seen{};  // by key
  SkipCounts skipped;
};

/// One Timeline for each device, of the tables below the document's root. They are spent then.
Result<Recording> RecordingOf(Tables& tables, Value root);

}  // namespace plimsoll::snapshot

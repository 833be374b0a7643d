// Builds Timelines from the dicts and lists of a memory snapshot, handed over innermost first.
//
// A dict is recognised by its keys, not by where it stands: "action" makes it an event, "blocks" a
// segment, "filename" a frame. So one builder serves every dialect (pickle protocols, the C++
// writer, JSON, the list form of 1.13) and no order is assumed.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "files/input.h"
#include "files/read_budget.h"
#include "readers/snapshot/value.h"
#include "timeline/recording.h"
#include "timeline/stack_builder.h"

namespace plimsoll::snapshot {

/// Every key that means something to us.
enum class Key : std::uint8_t {
  kUnknown,
  kAction,
  kAddr,
  kAddress,
  kSize,
  kStream,
  kTimeUs,
  kFrames,
  kForwardFrames,
  kDeviceFree,
  kUserMetadata,
  kCompileContext,
  kPoolId,
  kInternalMetadata,
  kName,
  kFilename,
  kLine,
  kFxOriginalTrace,
  kState,
  kRequestedSize,
  kHistory,
  kRealSize,
  kTotalSize,
  kSegmentType,
  kSegmentPoolId,
  kIsExpandable,
  kBlocks,
  kDevice,
  kRegistrationCounter,
  kSegments,
  kDeviceTraces,
  kAllocatorSettings,
  kExternalAnnotations,
  kHostSegments,
  kHostTraces,
  kStage,
  kConf,
  kMaxSplitSize,
  kMaxNonSplitRounding,
  kLargeSegmentSize,
  kGarbageCollectionThreshold,
  kExpandableSegments,
  kDivisions,
  kGraphCaptureReuse,
  kMaxCachedSize,
  kBudget,      // what `plimsoll run --budget` set
  kDivisionOf,  // "1", "2", "4", … "32768" inside roundup_power2_divisions
};
inline constexpr std::size_t kKeyCount = static_cast<std::size_t>(Key::kDivisionOf) + 1;

class Builder {
 public:
  /// The file's size bounds what it can legitimately ask for.
  explicit Builder(InputSize file);
  Builder(const Builder&) = delete;

  Value String(std::string_view text);
  /// Adds keys and values, alternating, to a dict. A new dict takes its type from them.
  void Extend(Value& dict, std::span<const Value> items);
  /// Adds items to a list. A new list takes its type from them.
  void Append(Value& list, std::span<const Value> items);
  Value Tuple(std::span<const Value> items);
  /// The stack of these frames, each distinct one once.
  Value Stack(std::span<const FrameId> frames);
  /// What a key means, wherever it stands.
  Key KeyOf(Value v) const {
    return v.kind == Kind::kString ? key_of_string_[v.payload] : Key::kUnknown;
  }
  struct Field {
    Key key = Key::kUnknown;
    Value value;
  };
  /// What Extend makes of a new dict with these keys, of which the first is "action".
  Value AddEvent(std::span<const Field> fields);
  /// What the tables may take; once it is spent, the reader gives up.
  ReadBudget& budget() { return budget_; }

  /// Takes the document's root. Nothing may be added afterwards.
  Result<Recording> Finish(Value root);

 private:
  struct Range {
    std::size_t first = 0;
    std::size_t count = 0;
    bool taken = false;  // each list becomes part of one timeline only
  };
  struct SegmentRow {
    Segment segment;
    std::int32_t device = 0;
    std::size_t block_list = kNone;
  };
  struct HistoryRow {
    Bytes real_size = 0;
    StackId stack;
  };
  struct SnapshotRow {
    Value segments, traces, settings, annotations, host_segments;
  };
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  Kind TypeOfDict(std::span<const Value> items) const;
  Value NewRow(Kind kind);
  void SetField(Value row, Key key, Value key_value, Value value);
  void SetEventField(Event& event, std::size_t row, Key key, Value value);
  void SetBlockField(std::size_t row, Key key, Value value);
  void SetSegmentField(std::size_t row, Key key, Value value);
  void SetSettingsField(Key key, Value value);
  void SetFrame(Value& dict, std::span<const Value> items);
  static Kind ListOf(Kind item);
  void AppendRows(Value& list, Kind item_kind, std::span<const Value> items);
  void AppendFrames(Value& list, std::span<const Value> items);
  void AppendTraces(Value& list, std::span<const Value> items);
  /// The frames that a traceback's text names, outermost first; parsed once.
  std::span<const FrameId> FramesOf(StringId traceback);
  template <typename Row, typename... Args>
  void AddRow(std::vector<Row>& table, Args&&... args) {
    if (budget_.Take(sizeof(Row))) table.emplace_back(std::forward<Args>(args)...);
    if (table.empty()) table.emplace_back();  // whatever follows finds a row
  }
  /// A file can have a hundred million of them.
  void Skip(const char* what) {
    for (auto& [reason, count] : skipped_) {
      if (reason == what) return void(++count);
    }
    skipped_.emplace_back(what, 1);
  }

  /// Nearly every event names the stream of the one before.
  std::uint16_t StreamIndex(Value v) {
    const std::uint64_t stream = v.kind == Kind::kInt ? v.payload : 0;
    return stream == last_stream_ && !streams_.empty() ? last_stream_index_ : FindStream(stream);
  }
  std::uint16_t FindStream(std::uint64_t stream);
  std::uint8_t PoolIndex(Value v);
  Action ActionOf(Value v) const {
    return v.kind == Kind::kString ? action_of_string_[v.payload] : Action::kOther;
  }
  static StackId StackOf(Value v) {
    return v.kind == Kind::kStack ? StackId(v.payload) : StackId();
  }
  StackId ForwardStackOf(Value strings);
  Bytes SizeOf(Value v);
  std::string WrittenBy() const;

  void TakeSegments(Value list, std::map<std::int32_t, Timeline>& by_device);
  /// `only`: no other list needs the events, so they need not be copied.
  void TakeEvents(Timeline& timeline, Range& range, bool only);
  void TakeAnnotations(Value list, std::map<std::int32_t, Timeline>& by_device);
  void GiveStacks(std::map<std::int32_t, Timeline>& by_device, StackBudget& copies);

  ReadBudget budget_;
  StackBudget stack_budget_;
  StackTable stacks_;
  StackBuilder stack_builder_{stacks_, stack_budget_};
  std::vector<Key> key_of_string_;        // by StringId
  std::vector<Action> action_of_string_;  // by StringId
  StringId no_text_;                      // "", which most events carry as their metadata
  std::vector<FrameId> scratch_frames_;
  std::size_t rebuild_budget_;

  std::vector<Event> events_;
  std::vector<EventNote> notes_;
  std::vector<ForwardStack> forward_;
  std::vector<Block> blocks_;
  std::vector<SegmentRow> segments_;
  std::vector<HistoryRow> histories_;
  std::vector<std::pair<Annotation, std::int32_t>> annotations_;
  std::vector<Bytes> host_segments_;
  std::vector<Range> lists_;
  std::vector<std::vector<std::size_t>> traces_;
  std::vector<PoolId> pairs_;
  std::vector<std::vector<StringId>> string_lists_;
  HashMap<std::uint64_t, StackId> forward_cache_;
  std::vector<FrameId> traceback_frames_;
  HashMap<std::uint32_t, std::pair<std::size_t, std::size_t>> tracebacks_;  // text to its frames
  std::vector<SnapshotRow> snapshots_;
  RecordedSettings settings_;
  std::array<std::int64_t, 16> divisions_{};

  std::vector<std::uint64_t> streams_;
  HashMap<std::uint64_t, std::uint16_t> stream_index_;
  std::uint64_t last_stream_ = 0;
  std::uint16_t last_stream_index_ = 0;
  std::vector<PoolId> pools_ = {PoolId{}};
  Bytes size_total_ = 0;
  std::array<bool, kKeyCount> seen_{};
  std::vector<std::pair<const char*, std::int64_t>> skipped_;
};

}  // namespace plimsoll::snapshot

#include "readers/snapshot/builder.h"

#include <algorithm>
#include <bit>
#include <charconv>

#include "timeline/limits.h"

namespace plimsoll::snapshot {
namespace {

const HashMap<std::string_view, Key>& Keys() {
  static const HashMap<std::string_view, Key> keys = {
      {"action", Key::kAction},
      {"addr", Key::kAddr},
      {"address", Key::kAddress},
      {"size", Key::kSize},
      {"stream", Key::kStream},
      {"time_us", Key::kTimeUs},
      {"frames", Key::kFrames},
      {"forward_frames", Key::kForwardFrames},
      {"device_free", Key::kDeviceFree},
      {"user_metadata", Key::kUserMetadata},
      {"compile_context", Key::kCompileContext},
      {"pool_id", Key::kPoolId},
      {"internal_metadata", Key::kInternalMetadata},
      {"name", Key::kName},
      {"filename", Key::kFilename},
      {"line", Key::kLine},
      {"fx_original_trace", Key::kFxOriginalTrace},
      {"state", Key::kState},
      {"requested_size", Key::kRequestedSize},
      {"history", Key::kHistory},
      {"real_size", Key::kRealSize},
      {"total_size", Key::kTotalSize},
      {"segment_type", Key::kSegmentType},
      {"segment_pool_id", Key::kSegmentPoolId},
      {"is_expandable", Key::kIsExpandable},
      {"blocks", Key::kBlocks},
      {"device", Key::kDevice},
      {"registration_counter", Key::kRegistrationCounter},
      {"segments", Key::kSegments},
      {"device_traces", Key::kDeviceTraces},
      {"allocator_settings", Key::kAllocatorSettings},
      {"external_annotations", Key::kExternalAnnotations},
      {"host_segments", Key::kHostSegments},
      {"host_traces", Key::kHostTraces},
      {"stage", Key::kStage},
      {"PYTORCH_CUDA_ALLOC_CONF", Key::kConf},
      {"PYTORCH_ALLOC_CONF", Key::kConf},
      {"max_split_size", Key::kMaxSplitSize},
      {"max_non_split_rounding_size", Key::kMaxNonSplitRounding},
      {"large_segment_size", Key::kLargeSegmentSize},
      {"garbage_collection_threshold", Key::kGarbageCollectionThreshold},
      {"expandable_segments", Key::kExpandableSegments},
      {"roundup_power2_divisions", Key::kDivisions},
      {"graph_capture_record_stream_reuse", Key::kGraphCaptureReuse},
      {"max_cached_size", Key::kMaxCachedSize},
      {"plimsoll_budget", Key::kBudget},
  };
  return keys;
}

/// The bucket that a key of roundup_power2_divisions names ("1" to "32768" MiB), or -1.
int DivisionBucket(std::string_view text) {
  std::uint32_t mib = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), mib);
  if (error != std::errc() || end != text.data() + text.size()) return -1;
  if (!std::has_single_bit(mib) || mib > 32768) return -1;
  return std::countr_zero(mib);
}

Action ActionNamed(std::string_view name) {
  if (name == "alloc") return Action::kAlloc;
  if (name == "free_requested") return Action::kFreeRequested;
  if (name == "free_completed") return Action::kFreeCompleted;
  if (name == "segment_alloc") return Action::kSegmentAlloc;
  if (name == "segment_free") return Action::kSegmentFree;
  if (name == "segment_map") return Action::kSegmentMap;
  if (name == "segment_unmap") return Action::kSegmentUnmap;
  if (name == "oom") return Action::kOutOfMemory;
  if (name == "snapshot") return Action::kSnapshot;
  if (name == "annotate") return Action::kAnnotate;
  return Action::kOther;
}

}  // namespace

Builder::Builder(InputSize file)
    : budget_(file), stack_budget_(ShareOf(file)), rebuild_budget_(file.unpacked / 4 + 4096) {
  // An event takes at least some sixty bytes of a pickle; the pages of this reservation are not
  // touched before they are needed.
  events_.reserve(file.unpacked / 72);
}

Value Builder::String(std::string_view text) {
  const StringId id = stacks_.strings.Intern(text);
  if (id.index() >= key_of_string_.size()) {
    // The text, and what a string and its entry in the index take.
    budget_.Take(text.size() + 112);
    const auto known = Keys().find(text);
    Key key = known == Keys().end() ? Key::kUnknown : known->second;
    if (key == Key::kUnknown && DivisionBucket(text) >= 0) key = Key::kDivisionOf;
    // The stack builder interns names of its own (cut ones), which are no keys.
    key_of_string_.resize(id.index(), Key::kUnknown);
    action_of_string_.resize(id.index(), Action::kOther);
    key_of_string_.push_back(key);
    action_of_string_.push_back(ActionNamed(text));
  }
  return {Kind::kString, id.index()};
}

Kind Builder::TypeOfDict(std::span<const Value> items) const {
  bool has_address = false;
  bool has_size = false;
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    switch (KeyOf(items[i])) {
      case Key::kAction:
        return Kind::kEvent;
      case Key::kBlocks:
      case Key::kTotalSize:
      case Key::kSegmentType:
        return Kind::kSegment;
      case Key::kState:
        return Kind::kBlock;
      case Key::kFilename:
        return Kind::kFrame;
      case Key::kSegments:
      case Key::kDeviceTraces:
        return Kind::kSnapshot;
      case Key::kStage:
        return Kind::kAnnotation;
      case Key::kRealSize:
        return Kind::kHistory;
      case Key::kConf:
      case Key::kMaxSplitSize:
      case Key::kBudget:
      case Key::kExpandableSegments:
      case Key::kGarbageCollectionThreshold:
        return Kind::kSettings;
      case Key::kDivisionOf:
        return Kind::kDivisions;
      case Key::kAddress:
        has_address = true;
        break;
      case Key::kSize:
        has_size = true;
        break;
      default:
        break;
    }
  }
  return has_address && has_size ? Kind::kHostSegment : Kind::kNewDict;
}

Value Builder::NewRow(Kind kind) {
  const auto row = [kind](std::size_t size) { return Value{kind, size - 1}; };
  switch (kind) {
    case Kind::kEvent:
      AddRow(events_);
      return row(events_.size());
    case Kind::kSegment:
      AddRow(segments_);
      return row(segments_.size());
    case Kind::kBlock:
      AddRow(blocks_);
      return row(blocks_.size());
    case Kind::kSnapshot:
      AddRow(snapshots_);
      return row(snapshots_.size());
    case Kind::kAnnotation:
      AddRow(annotations_);
      return row(annotations_.size());
    case Kind::kHistory:
      AddRow(histories_);
      return row(histories_.size());
    case Kind::kHostSegment:
      AddRow(host_segments_);
      return row(host_segments_.size());
    default:
      return {kind, 0};
  }
}

void Builder::Extend(Value& dict, std::span<const Value> items) {
  if (dict.kind == Kind::kNewDict) {
    const Kind type = TypeOfDict(items);
    if (type == Kind::kNewDict) return;
    if (type == Kind::kFrame) return SetFrame(dict, items);
    dict = NewRow(type);
  }
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    const Key key = KeyOf(items[i]);
    if (key == Key::kUnknown) continue;
    seen_[static_cast<std::size_t>(key)] = true;
    SetField(dict, key, items[i], items[i + 1]);
  }
}

Bytes Builder::SizeOf(Value v) {
  if (v.kind != Kind::kInt || v.AsInt() < 0) {
    Skip("sizes that are no number");
    return 0;
  }
  if (v.AsInt() > kLargestSize || size_total_ > kMostInAll) {
    Skip("sizes beyond any device");
    return 0;
  }
  size_total_ += v.AsInt();
  return v.AsInt();
}

[[gnu::always_inline]] inline void Builder::SetEventField(Event& event, std::size_t row, Key key,
                                                          Value value) {
  switch (key) {
    case Key::kAction:
      event.action = ActionOf(value);
      if (event.action == Action::kOther) Skip("events of an unknown kind");
      return;
    case Key::kAddr:
      if (value.kind == Kind::kInt) event.address = value.payload;
      return;
    case Key::kDeviceFree:
      if (value.kind == Kind::kInt) {
        event.address = std::min(value.payload, static_cast<Address>(kLargestSize));
      }
      return;
    case Key::kSize:
      event.size = SizeOf(value);
      return;
    case Key::kStream:
      event.stream = StreamIndex(value);
      return;
    case Key::kTimeUs:
      if (value.kind == Kind::kInt) event.time_us = value.AsInt();
      return;
    case Key::kFrames:
      event.stack = StackOf(value);
      return;
    case Key::kForwardFrames:
      if (value.kind == Kind::kStrings) {
        AddRow(forward_, ForwardStack{static_cast<EventIndex>(row), ForwardStackOf(value)});
      }
      return;
    case Key::kPoolId:
      event.pool = PoolIndex(value);
      return;
    case Key::kUserMetadata:
      if (value.kind != Kind::kString || StringId(value.payload) == no_text_) return;
      if (stacks_.strings[StringId(value.payload)].empty()) {
        no_text_ = StringId(value.payload);
      } else {
        const StringId text = stack_builder_.Shortened(StringId(value.payload));
        AddRow(notes_, EventNote{static_cast<EventIndex>(row), text});
      }
      return;
    default:
      return;
  }
}

Value Builder::AddEvent(std::span<const Field> fields) {
  const Value row = NewRow(Kind::kEvent);
  Event event;
  for (const Field& field : fields) {
    seen_[static_cast<std::size_t>(field.key)] = true;
    SetEventField(event, row.payload, field.key, field.value);
  }
  events_[row.payload] = event;
  return row;
}

void Builder::SetField(Value row, Key key, Value key_value, Value value) {
  switch (row.kind) {
    case Kind::kEvent:
      return SetEventField(events_[row.payload], row.payload, key, value);
    case Kind::kBlock:
      return SetBlockField(row.payload, key, value);
    case Kind::kSegment:
      return SetSegmentField(row.payload, key, value);
    case Kind::kSettings:
      return SetSettingsField(key, value);
    case Kind::kDivisions:
      if (key == Key::kDivisionOf && value.kind == Kind::kInt) {
        const int bucket = DivisionBucket(stacks_.strings[StringId(key_value.payload)]);
        divisions_[static_cast<std::size_t>(bucket)] = value.AsInt();
      }
      return;
    case Kind::kHistory:
      if (key == Key::kRealSize) histories_[row.payload].real_size = SizeOf(value);
      if (key == Key::kFrames) histories_[row.payload].stack = StackOf(value);
      return;
    case Kind::kHostSegment:
      if (key == Key::kSize) host_segments_[row.payload] = SizeOf(value);
      return;
    case Kind::kAnnotation: {
      auto& [annotation, device] = annotations_[row.payload];
      if (key == Key::kName && value.kind == Kind::kString) {
        annotation.name = stack_builder_.Shortened(StringId(value.payload));
      } else if (key == Key::kStage && value.kind == Kind::kString) {
        annotation.start = stacks_.strings[StringId(value.payload)] == "START";
      } else if (key == Key::kTimeUs && value.kind == Kind::kInt) {
        annotation.time_us = value.AsInt();
      } else if (key == Key::kDevice && value.kind == Kind::kInt) {
        device = static_cast<std::int32_t>(value.AsInt());
      }
      return;
    }
    case Kind::kSnapshot: {
      SnapshotRow& snapshot = snapshots_[row.payload];
      if (key == Key::kSegments) snapshot.segments = value;
      if (key == Key::kDeviceTraces) snapshot.traces = value;
      if (key == Key::kAllocatorSettings) snapshot.settings = value;
      if (key == Key::kExternalAnnotations) snapshot.annotations = value;
      if (key == Key::kHostSegments) snapshot.host_segments = value;
      return;
    }
    default:
      return;
  }
}

void Builder::SetBlockField(std::size_t row, Key key, Value value) {
  Block& block = blocks_[row];
  switch (key) {
    case Key::kAddress:
      if (value.kind == Kind::kInt) block.address = value.payload;
      return;
    case Key::kSize:
      block.size = SizeOf(value);
      if (block.requested == 0) block.requested = block.size;
      return;
    case Key::kRequestedSize:
      block.requested = SizeOf(value);
      return;
    case Key::kFrames:
      block.stack = StackOf(value);
      return;
    case Key::kState: {
      if (value.kind != Kind::kString) return;
      const std::string_view state = stacks_.strings[StringId(value.payload)];
      // "active_awaiting_free" is what the documentation calls it; files say the other.
      block.state = state == "active_allocated"       ? BlockState::kActive
                    : state == "active_pending_free"  ? BlockState::kPendingFree
                    : state == "active_awaiting_free" ? BlockState::kPendingFree
                                                      : BlockState::kInactive;
      return;
    }
    case Key::kHistory:
      // The newest entry comes first; the others were merged into this block.
      if (value.kind == Kind::kHistory && value.payload < histories_.size()) {
        const HistoryRow& newest = histories_[value.payload];
        block.requested = newest.real_size;
        block.stack = newest.stack;
      }
      return;
    default:
      return;
  }
}

void Builder::SetSegmentField(std::size_t row, Key key, Value value) {
  Segment& segment = segments_[row].segment;
  switch (key) {
    case Key::kAddress:
      if (value.kind == Kind::kInt) segment.address = value.payload;
      return;
    case Key::kTotalSize:
      segment.size = SizeOf(value);
      return;
    case Key::kStream:
      segment.stream = StreamIndex(value);
      return;
    case Key::kSegmentType:
      segment.small =
          value.kind == Kind::kString && stacks_.strings[StringId(value.payload)] == "small";
      return;
    case Key::kSegmentPoolId:
      segment.pool = PoolIndex(value);
      return;
    case Key::kIsExpandable:
      segment.expandable = value.kind == Kind::kBool && value.payload != 0;
      return;
    case Key::kFrames:
      segment.stack = StackOf(value);
      return;
    case Key::kDevice:
      if (value.kind == Kind::kInt) {
        segments_[row].device = static_cast<std::int32_t>(value.AsInt());
      }
      return;
    case Key::kBlocks:
      if (value.kind == Kind::kBlockList) segments_[row].block_list = value.payload;
      return;
    default:
      return;
  }
}

void Builder::SetSettingsField(Key key, Value value) {
  const bool is_int = value.kind == Kind::kInt;
  switch (key) {
    case Key::kConf:
      if (value.kind == Kind::kString) {
        settings_.conf = CutName(stacks_.strings[StringId(value.payload)], kLongestName);
      }
      return;
    case Key::kMaxSplitSize:
      if (is_int) settings_.max_split_size = std::min(value.AsInt(), kLargestSize);
      return;
    case Key::kMaxNonSplitRounding:
      if (is_int) settings_.max_non_split_rounding = std::min(value.AsInt(), kLargestSize);
      return;
    case Key::kLargeSegmentSize:
      if (is_int) settings_.large_segment_size = std::min(value.AsInt(), kLargestSize);
      return;
    case Key::kGarbageCollectionThreshold:
      if (value.kind == Kind::kFloat) {
        settings_.garbage_collection_threshold = std::bit_cast<double>(value.payload);
      }
      return;
    case Key::kExpandableSegments:
      if (value.kind == Kind::kBool) settings_.expandable_segments = value.payload != 0;
      return;
    case Key::kBudget:
      if (is_int && value.AsInt() > 0) settings_.budget = std::min(value.AsInt(), kLargestSize);
      return;
    default:
      return;
  }
}

Value Builder::Tuple(std::span<const Value> items) {
  if (items.size() == 2 && items[0].kind == Kind::kInt && items[1].kind == Kind::kInt) {
    // Nearly every event names the same pool.
    const PoolId pair{items[0].AsInt(), items[1].AsInt()};
    if (pairs_.empty() || pairs_.back() != pair) AddRow(pairs_, pair);
    return {Kind::kPair, pairs_.size() - 1};
  }
  return {Kind::kOpaque, 0};
}

void Builder::SetFrame(Value& dict, std::span<const Value> items) {
  Frame frame;
  StringId original;
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    const Value value = items[i + 1];
    const Key key = KeyOf(items[i]);
    if (key == Key::kName && value.kind == Kind::kString) frame.function = StringId(value.payload);
    if (key == Key::kFilename && value.kind == Kind::kString) frame.file = StringId(value.payload);
    if (key == Key::kLine && value.kind == Kind::kInt) {
      frame.line = static_cast<std::int32_t>(value.AsInt());
    }
    if (key == Key::kFxOriginalTrace && value.kind == Kind::kString) {
      original = StringId(value.payload);
    }
  }
  // The last entry is the innermost: the user's own line that the compiled code came from.
  const std::span<const FrameId> lines = FramesOf(original);
  const FrameId id = lines.empty() ? stack_builder_.AddFrame(frame) : lines.back();
  dict = {Kind::kFrame, id.index()};
}

Value Builder::Stack(std::span<const FrameId> frames) {
  return {Kind::kStack, stack_builder_.AddStack(frames).index()};
}

}  // namespace plimsoll::snapshot

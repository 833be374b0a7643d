#include "readers/snapshot/builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <initializer_list>

#include "timeline/limits.h"

namespace plimsoll::snapshot {
namespace {

bool HasAnyOf(const Words& words, std::span<const Value> items, std::initializer_list<Key> wanted) {
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    const Key key = words.KeyOf(items[i]);
    if (std::find(wanted.begin(), wanted.end(), key) != wanted.end()) return true;
  }
  return false;
}

Kind TypeOfDict(const Words& words, std::span<const Value> items) {
  bool has_address = false;
  bool has_size = false;
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    switch (words.KeyOf(items[i])) {
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
        // A program may call what it attaches to its events by that name too.
        if (items.size() == 2 || HasAnyOf(words, items, {Key::kName, Key::kTimeUs})) {
          return Kind::kAnnotation;
        }
        break;
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

void SetSettingsField(const Words& words, Key key, Value value, RecordedSettings& settings) {
  const bool is_int = value.kind == Kind::kInt;
  switch (key) {
    case Key::kConf:
      if (value.kind == Kind::kString) {
        settings.conf = CutName(words.TextOf(value), kLongestName);
      }
      return;
    case Key::kMaxSplitSize:
      if (is_int) settings.max_split_size = std::min(value.AsInt(), kLargestSize);
      return;
    case Key::kMaxNonSplitRounding:
      if (is_int) settings.max_non_split_rounding = std::min(value.AsInt(), kLargestSize);
      return;
    case Key::kLargeSegmentSize:
      if (is_int) settings.large_segment_size = std::min(value.AsInt(), kLargestSize);
      return;
    case Key::kGarbageCollectionThreshold:
      if (value.kind == Kind::kFloat) {
        settings.garbage_collection_threshold = std::bit_cast<double>(value.payload);
      }
      return;
    case Key::kExpandableSegments:
      if (value.kind == Kind::kBool) settings.expandable_segments = value.payload != 0;
      return;
    case Key::kTraceOverflowed:
      settings.trace_overflowed = (value.kind == Kind::kBool || is_int) && value.payload != 0;
      return;
    case Key::kTraceMaxEntries:
      if (is_int && value.AsInt() > 0) settings.trace_max_entries = value.AsInt();
      return;
    case Key::kBudget:
      if (is_int && value.AsInt() > 0) settings.budget = std::min(value.AsInt(), kLargestSize);
      return;
    default:
      return;
  }
}

/// "relu" of "<function relu at 0xffff75baede0>", which is another text in each process; anything
/// else as it is.
std::string_view CalledName(std::string_view target) {
  for (const std::string_view what : {"<function ", "<built-in function ", "<built-in method "}) {
    if (!target.starts_with(what)) continue;
    target.remove_prefix(what.size());
    return target.substr(0, target.find_first_of(" >"));
  }
  return target;
}

StackId StackOf(Value v) { return v.kind == Kind::kStack ? StackId(v.payload) : StackId(); }

}  // namespace

Builder::Builder(InputSize file)
    : tables_(file),
      rebuild_budget_(file.unpacked / 4 + 4096),
      label_budget_(file.unpacked + 4096) {
  // An event takes at least some sixty bytes of a pickle; the pages of this reservation are not
  // touched before they are needed.
  tables_.events.reserve(file.unpacked / 72);
}

Value Builder::NewRow(Kind kind) {
  const auto row = [kind](std::size_t size) { return Value{kind, size - 1}; };
  switch (kind) {
    case Kind::kEvent:
      AddRow(tables_.budget, tables_.events);
      return row(tables_.events.size());
    case Kind::kSegment:
      AddRow(tables_.budget, tables_.segments);
      return row(tables_.segments.size());
    case Kind::kBlock:
      AddRow(tables_.budget, tables_.blocks);
      return row(tables_.blocks.size());
    case Kind::kSnapshot:
      AddRow(tables_.budget, tables_.snapshots);
      return row(tables_.snapshots.size());
    case Kind::kAnnotation:
      AddRow(tables_.budget, tables_.annotations);
      return row(tables_.annotations.size());
    case Kind::kHistory:
      AddRow(tables_.budget, tables_.histories);
      return row(tables_.histories.size());
    case Kind::kHostSegment:
      AddRow(tables_.budget, tables_.host_segments);
      return row(tables_.host_segments.size());
    default:
      return {kind, 0};
  }
}

void Builder::Extend(Value& dict, std::span<const Value> items) {
  // Taken for labels by its first key; old pickles set one key after the other.
  if (dict.kind == Kind::kString) {
    const Kind type = TypeOfDict(words_, items);
    if (type == Kind::kNewDict) return;
    dict = {Kind::kNewDict, kNoMemo};
  }
  if (dict.kind == Kind::kNewDict) {
    const Kind type = TypeOfDict(words_, items);
    if (type == Kind::kNewDict) {
      TakeLabels(dict, items);
      return;
    }
    if (type == Kind::kFrame) return SetFrame(dict, items);
    dict = NewRow(type);
  }
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    const Key key = KeyOf(items[i]);
    if (key == Key::kUnknown) continue;
    tables_.seen[static_cast<std::size_t>(key)] = true;
    SetField(dict, key, items[i], items[i + 1]);
  }
}

Bytes Builder::SizeOf(Value v) {
  if (v.kind != Kind::kInt || v.AsInt() < 0) {
    tables_.skipped.Count("sizes that are no number");
    return 0;
  }
  if (v.AsInt() > kLargestSize || size_total_ > kMostInAll) {
    tables_.skipped.Count("sizes beyond any device");
    return 0;
  }
  size_total_ += v.AsInt();
  return v.AsInt();
}

std::uint8_t Builder::PoolOf(Value v) {
  return v.kind == Kind::kPair ? tables_.pools.IndexOf(tables_.pairs[v.payload], tables_.skipped)
                               : std::uint8_t{0};
}

StackId Builder::ForwardStackOf(Value strings) {
  const auto [cached, is_new] = forward_cache_.try_emplace(strings.payload);
  if (is_new) cached->second = tracebacks_.StackOf(tables_.string_lists[strings.payload]);
  return cached->second;
}

[[gnu::always_inline]] inline void Builder::SetEventField(Event& event, std::size_t row, Key key,
                                                          Value value) {
  switch (key) {
    case Key::kAction:
      event.action = words_.ActionOf(value);
      if (event.action == Action::kOther) tables_.skipped.Count("events of an unknown kind");
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
      event.stream = StreamOf(value);
      return;
    case Key::kTimeUs:
      if (value.kind == Kind::kInt) event.time_us = value.AsInt();
      return;
    case Key::kFrames:
      event.stack = StackOf(value);
      return;
    case Key::kForwardFrames:
      if (value.kind == Kind::kStrings) {
        AddRow(tables_.budget, tables_.forward,
               ForwardStack{static_cast<EventIndex>(row), ForwardStackOf(value)});
      }
      return;
    case Key::kPoolId:
      event.pool = PoolOf(value);
      return;
    case Key::kPurpose:
      if (value.kind == Kind::kString) {
        AddRow(tables_.budget, tables_.purposes,
               EventNote{static_cast<EventIndex>(row), StringId(value.payload)});
      }
      return;
    case Key::kCompileContext:
      NoteContext(row, value);
      return;
    case Key::kCategory:
      if (value.kind == Kind::kString) {
        AddRow(tables_.budget, tables_.given,
               EventNote{static_cast<EventIndex>(row), StringId(value.payload)});
      } else if (value.kind == Kind::kInt) {
        AddRow(tables_.budget, tables_.given_by_number,
               std::pair(static_cast<EventIndex>(row), value.AsInt()));
      }
      return;
    case Key::kUserMetadata:
      if (value.kind != Kind::kString || StringId(value.payload) == no_text_) return;
      if (words_.TextOf(value).empty()) {
        no_text_ = StringId(value.payload);
      } else {
        const StringId text = stack_builder_.Shortened(MetadataOf(StringId(value.payload)));
        AddRow(tables_.budget, tables_.notes, EventNote{static_cast<EventIndex>(row), text});
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
    tables_.seen[static_cast<std::size_t>(field.key)] = true;
    SetEventField(event, row.payload, field.key, field.value);
  }
  tables_.events[row.payload] = event;
  return row;
}

void Builder::SetField(Value row, Key key, Value key_value, Value value) {
  switch (row.kind) {
    case Kind::kEvent:
      return SetEventField(tables_.events[row.payload], row.payload, key, value);
    case Kind::kBlock:
      return SetBlockField(row.payload, key, value);
    case Kind::kSegment:
      return SetSegmentField(row.payload, key, value);
    case Kind::kSettings:
      return SetSettingsField(words_, key, value, tables_.settings);
    case Kind::kDivisions:
      if (key == Key::kDivisionOf && value.kind == Kind::kInt) {
        const int bucket = DivisionBucket(words_.TextOf(key_value));
        tables_.divisions[static_cast<std::size_t>(bucket)] = value.AsInt();
      }
      return;
    case Kind::kHistory:
      if (key == Key::kRealSize) tables_.histories[row.payload].real_size = SizeOf(value);
      if (key == Key::kFrames) tables_.histories[row.payload].stack = StackOf(value);
      return;
    case Kind::kHostSegment: {
      PinnedMemory::Piece& piece = tables_.host_segments[row.payload];
      if (key == Key::kSize) piece.size = SizeOf(value);
      if (key == Key::kAddress && value.kind == Kind::kInt) piece.address = value.payload;
      // By release the bytes, or whether it is in use.
      if (key == Key::kAllocated && (value.kind == Kind::kInt || value.kind == Kind::kBool)) {
        piece.in_use = value.payload != 0;
      }
      return;
    }
    case Kind::kAnnotation: {
      auto& [annotation, device] = tables_.annotations[row.payload];
      if (key == Key::kName && value.kind == Kind::kString) {
        annotation.name = stack_builder_.Shortened(StringId(value.payload));
      } else if (key == Key::kStage && value.kind == Kind::kString) {
        annotation.start = words_.TextOf(value) == "START";
      } else if (key == Key::kTimeUs && value.kind == Kind::kInt) {
        annotation.time_us = value.AsInt();
      } else if (key == Key::kDevice && value.kind == Kind::kInt) {
        device = static_cast<std::int32_t>(value.AsInt());
      }
      return;
    }
    case Kind::kSnapshot: {
      SnapshotRow& snapshot = tables_.snapshots[row.payload];
      if (key == Key::kSegments) snapshot.segments = value;
      if (key == Key::kDeviceTraces) snapshot.traces = value;
      if (key == Key::kAllocatorSettings) snapshot.settings = value;
      if (key == Key::kExternalAnnotations) snapshot.annotations = value;
      if (key == Key::kHostSegments) snapshot.host_segments = value;
      if (key == Key::kHostTraces) snapshot.host_traces = value;
      if (key == Key::kCategories) snapshot.categories = value;
      if (key == Key::kPrediction) snapshot.prediction = value;
      if (key == Key::kPredictedTorch) snapshot.torch = value;
      return;
    }
    default:
      return;
  }
}

void Builder::SetBlockField(std::size_t row, Key key, Value value) {
  Block& block = tables_.blocks[row];
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
      const std::string_view state = words_.TextOf(value);
      // "active_awaiting_free" is what the documentation calls it; files say the other.
      block.state = state == "active_allocated"       ? BlockState::kActive
                    : state == "active_pending_free"  ? BlockState::kPendingFree
                    : state == "active_awaiting_free" ? BlockState::kPendingFree
                                                      : BlockState::kInactive;
      return;
    }
    case Key::kCategory:
      if (value.kind == Kind::kString) {
        AddRow(tables_.budget, tables_.given_of_blocks, std::pair(row, StringId(value.payload)));
      }
      return;
    case Key::kOwner:
      if (value.kind == Kind::kString) {
        block.owner = stack_builder_.Shortened(StringId(value.payload));
      }
      return;
    case Key::kHistory:
      // The newest entry comes first; the others were merged into this block.
      if (value.kind == Kind::kHistory && value.payload < tables_.histories.size()) {
        const HistoryRow& newest = tables_.histories[value.payload];
        block.requested = newest.real_size;
        block.stack = newest.stack;
      }
      return;
    default:
      return;
  }
}

void Builder::SetSegmentField(std::size_t row, Key key, Value value) {
  Segment& segment = tables_.segments[row].segment;
  switch (key) {
    case Key::kAddress:
      if (value.kind == Kind::kInt) segment.address = value.payload;
      return;
    case Key::kTotalSize:
      segment.size = SizeOf(value);
      return;
    case Key::kStream:
      segment.stream = StreamOf(value);
      return;
    case Key::kSegmentType:
      segment.small = value.kind == Kind::kString && words_.TextOf(value) == "small";
      return;
    case Key::kSegmentPoolId:
      segment.pool = PoolOf(value);
      return;
    case Key::kIsExpandable:
      segment.expandable = value.kind == Kind::kBool && value.payload != 0;
      return;
    case Key::kFrames:
      segment.stack = StackOf(value);
      return;
    case Key::kDevice:
      if (value.kind == Kind::kInt) {
        tables_.segments[row].device = static_cast<std::int32_t>(value.AsInt());
      }
      return;
    case Key::kBlocks:
      if (value.kind == Kind::kBlockList) tables_.segments[row].block_list = value.payload;
      return;
    default:
      return;
  }
}

Value Builder::Tuple(std::span<const Value> items) {
  if (items.size() == 2 && items[0].kind == Kind::kInt && items[1].kind == Kind::kInt) {
    // Nearly every event names the same pool.
    const PoolId pair{items[0].AsInt(), items[1].AsInt()};
    if (tables_.pairs.empty() || tables_.pairs.back() != pair)
      AddRow(tables_.budget, tables_.pairs, pair);
    return {Kind::kPair, tables_.pairs.size() - 1};
  }
  return {Kind::kOpaque, 0};
}

void Builder::SetFrame(Value& dict, std::span<const Value> items) {
  Frame frame;
  StringId original;
  std::string_view node;
  std::string_view target;
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
    if (key == Key::kFxNodeName && value.kind == Kind::kString) node = words_.TextOf(value);
    if (key == Key::kFxNodeTarget && value.kind == Kind::kString) target = words_.TextOf(value);
  }
  if (!node.empty() || !target.empty()) {
    const std::string_view between = node.empty() || target.empty() ? "" : ": ";
    // Added as a name, since what is looked at lies in the table that grows.
    const std::string name = fmt::format("{}{}{}", node, between, CalledName(target));
    frame.node = stack_builder_.Shortened(words_.Add(name));
  }
  // The last entry is the innermost: the user's own line that the compiled code came from.
  const std::span<const FrameId> lines = tracebacks_.FramesOf(original);
  if (!lines.empty() && frame.node.valid()) {
    const StringId node_of_it = frame.node;
    frame = tables_.stacks.frame(lines.back());
    frame.node = node_of_it;
  }
  const bool own = lines.empty() || frame.node.valid();
  const FrameId id = own ? stack_builder_.AddFrame(frame) : lines.back();
  dict = {Kind::kFrame, id.index()};
}

Value Builder::Stack(std::span<const FrameId> frames) {
  return {Kind::kStack, stack_builder_.AddStack(frames).index()};
}

}  // namespace plimsoll::snapshot

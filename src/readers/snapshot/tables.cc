// From the tables to one Timeline for each device.
#include "readers/snapshot/tables.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>

#include "timeline/limits.h"
#include "timeline/stack_builder.h"

namespace plimsoll::snapshot {

std::uint16_t StreamTable::Find(std::uint64_t stream, SkipCounts& skipped) {
  const auto known = index_.find(stream);
  if (known != index_.end()) {
    last_index_ = known->second;
  } else if (streams_.size() < kMostStreams) {
    last_index_ = static_cast<std::uint16_t>(streams_.size());
    streams_.push_back(stream);
    index_.emplace(stream, last_index_);
  } else {
    skipped.Count("streams beyond the first 1,024");
    return 0;
  }
  last_ = stream;
  return last_index_;
}

std::uint8_t PoolTable::IndexOf(PoolId id, SkipCounts& skipped) {
  const auto known = std::find(pools_.begin(), pools_.end(), id);
  if (known != pools_.end()) return static_cast<std::uint8_t>(known - pools_.begin());
  if (pools_.size() == std::numeric_limits<std::uint8_t>::max()) {
    skipped.Count("pools beyond the first 254");
    return static_cast<std::uint8_t>(pools_.size() - 1);
  }
  pools_.push_back(id);
  return static_cast<std::uint8_t>(pools_.size() - 1);
}

namespace {

/// Far more than a machine has; each gets tables of its own.
constexpr std::int32_t kMostSnapshotDevices = 64;

/// Which releases write these keys; research of the literals in every tag.
std::string WrittenBy(const Tables& tables) {
  const auto seen = [&](Key key) { return tables.seen[static_cast<std::size_t>(key)]; };
  if (seen(Key::kInternalMetadata)) return "2.14 or newer";
  if (seen(Key::kHostTraces)) return "2.14 or newer";
  if (seen(Key::kMaxCachedSize)) return "2.13 or newer";
  if (seen(Key::kPoolId)) return "2.12";
  if (seen(Key::kForwardFrames)) return "2.11";
  if (seen(Key::kUserMetadata)) return "2.10 to 2.11";
  if (seen(Key::kGraphCaptureReuse)) return "2.9";
  if (seen(Key::kCompileContext)) return "2.8";
  if (seen(Key::kExternalAnnotations)) return "2.5 to 2.7";
  if (seen(Key::kAllocatorSettings)) return "2.3 to 2.4";
  if (seen(Key::kTimeUs)) return "2.2";
  if (seen(Key::kIsExpandable) || seen(Key::kSegmentPoolId)) return "2.1";
  if (seen(Key::kHistory)) return seen(Key::kDeviceTraces) ? "2.0" : "1.13";
  return "";
}

/// Copies the stacks that a timeline uses into a table of its own.
class StackCopier {
 public:
  StackCopier(const StackTable& from, StackTable& to, StackBudget& stacks, ReadBudget& budget)
      : from_(from), to_(to), builder_(to, stacks), budget_(budget) {}

  void Copy(StackId& stack) {
    if (!stack.valid()) return;
    const auto known = stacks_.find(stack);
    if (known != stacks_.end()) {
      stack = known->second;
      return;
    }
    std::vector<FrameId> frames;
    for (FrameId frame : from_.stack(stack)) frames.push_back(Copied(frame));
    const StackId copy = builder_.AddStack(frames);
    stacks_.emplace(stack, copy);
    stack = copy;
  }
  void Copy(StringId& text) {
    if (!text.valid()) return;
    const std::size_t known = to_.strings.size();
    const std::string_view whole = from_.strings[text];
    text = to_.strings.Intern(whole);
    if (to_.strings.size() > known) budget_.Take(whole.size() + 112);
  }

 private:
  FrameId Copied(FrameId frame) {
    const auto known = frames_.find(frame);
    if (known != frames_.end()) return known->second;
    Frame copy = from_.frame(frame);
    Copy(copy.function);
    Copy(copy.file);
    Copy(copy.node);
    return frames_.emplace(frame, builder_.AddFrame(copy)).first->second;
  }

  const StackTable& from_;
  StackTable& to_;
  StackBuilder builder_;
  ReadBudget& budget_;
  std::unordered_map<FrameId, FrameId> frames_;
  std::unordered_map<StackId, StackId> stacks_;
};

/// Gives each device its part of the tables.
class TimelineMaker {
 public:
  explicit TimelineMaker(Tables& tables) : tables_(tables) {}

  void TakeSegments(Value list);
  void TakeTraces(Value list);
  void TakeAnnotations(Value list);
  void TakePinned(const SnapshotRow& snapshot);
  void GivePinned();
  /// Turns numbers into the names of the document's list.
  void NameCategories(Value list);
  void GiveStacks(StackBudget& copies);
  std::map<std::int32_t, Timeline>& by_device() { return by_device_; }

 private:
  /// `only`: no other list needs the events, so they need not be copied.
  void TakeEvents(Timeline& timeline, RowRange& range, bool only);

  Tables& tables_;
  PinnedMemory pinned_;
  std::map<std::int32_t, Timeline> by_device_;
};

void TimelineMaker::TakeSegments(Value list) {
  if (list.kind != Kind::kSegmentList) return;
  const RowRange range = tables_.lists[list.payload];
  for (std::size_t i = range.first; i < range.first + range.count; ++i) {
    const SegmentRow& row = tables_.segments[i];
    if (row.device < 0 || row.device >= kMostSnapshotDevices) {
      tables_.skipped.Count("segments of devices that no machine has");
      continue;
    }
    Timeline& timeline = by_device_[row.device];
    Segment segment = row.segment;
    segment.first_block = timeline.blocks.size();
    if (row.block_list != kNoList && !tables_.lists[row.block_list].taken) {
      RowRange& blocks = tables_.lists[row.block_list];
      blocks.taken = true;
      segment.block_count = blocks.count;
      Address next = segment.address;
      for (std::size_t b = blocks.first; b < blocks.first + blocks.count; ++b) {
        Block block = tables_.blocks[b];
        // Before 2.1 blocks have no address of their own: they lie one after the other.
        if (block.address == 0) block.address = next;
        next = block.address + static_cast<Address>(block.size);
        timeline.blocks.push_back(block);
        const auto given = std::ranges::lower_bound(tables_.given_of_blocks, b, {},
                                                    &std::pair<std::size_t, StringId>::first);
        if (given != tables_.given_of_blocks.end() && given->first == b) {
          timeline.given_of_blocks.push_back({block.address, given->second});
        }
      }
    }
    timeline.segments.push_back(segment);
  }
}

void TimelineMaker::TakeEvents(Timeline& timeline, RowRange& range, bool only) {
  if (range.taken) return tables_.skipped.Count("event lists that stand in the file twice");
  range.taken = true;
  const std::size_t end = range.first + range.count;
  const auto take = [&](const std::vector<EventNote>& all, std::vector<EventNote>& own) {
    for (const EventNote& note : all) {
      if (note.event < range.first || note.event >= end) continue;
      own.push_back({static_cast<EventIndex>(note.event - range.first), note.text});
    }
  };
  take(tables_.notes, timeline.notes);
  take(tables_.purposes, timeline.purposes);
  take(tables_.contexts, timeline.compile_contexts);
  take(tables_.given, timeline.given_categories);
  for (const ForwardStack& row : tables_.forward) {
    if (row.event >= range.first && row.event < end) {
      timeline.forward_stacks.push_back(
          {static_cast<EventIndex>(row.event - range.first), row.stack});
    }
  }
  if (only && range.first == 0 && range.count == tables_.events.size()) {
    timeline.events = std::move(tables_.events);
  } else {
    timeline.events.assign(tables_.events.begin() + static_cast<std::ptrdiff_t>(range.first),
                           tables_.events.begin() + static_cast<std::ptrdiff_t>(end));
  }
}

void TimelineMaker::TakeAnnotations(Value list) {
  if (list.kind != Kind::kAnnotationList) return;
  const RowRange range = tables_.lists[list.payload];
  for (std::size_t i = range.first; i < range.first + range.count; ++i) {
    const auto found = by_device_.find(tables_.annotations[i].second);
    if (found == by_device_.end()) continue;
    found->second.annotations.push_back(tables_.annotations[i].first);
  }
}

void TimelineMaker::TakeTraces(Value list) {
  if (list.kind != Kind::kTraces) return;
  const std::vector<std::size_t>& traces = tables_.traces[list.payload];
  const std::size_t devices = std::min<std::size_t>(traces.size(), kMostSnapshotDevices);
  const auto used =
      std::count_if(traces.begin(), traces.end(), [](std::size_t one) { return one != kNoList; });
  for (std::size_t device = 0; device < devices; ++device) {
    if (traces[device] == kNoList || tables_.lists[traces[device]].taken) continue;
    TakeEvents(by_device_[static_cast<std::int32_t>(device)], tables_.lists[traces[device]],
               used == 1);
  }
}

void TimelineMaker::NameCategories(Value list) {
  if (list.kind == Kind::kStrings) {
    const std::vector<StringId>& names = tables_.string_lists[list.payload];
    for (const auto& [event, number] : tables_.given_by_number) {
      if (number < 0 || static_cast<std::size_t>(number) >= names.size()) continue;
      AddRow(tables_.budget, tables_.given,
             EventNote{event, names[static_cast<std::size_t>(number)]});
    }
  }
  std::ranges::stable_sort(tables_.given, {}, &EventNote::event);
  std::ranges::stable_sort(tables_.given_of_blocks, {}, &std::pair<std::size_t, StringId>::first);
}

void TimelineMaker::TakePinned(const SnapshotRow& snapshot) {
  if (snapshot.host_segments.kind == Kind::kHostSegmentList) {
    const RowRange range = tables_.lists[snapshot.host_segments.payload];
    const auto first = tables_.host_segments.begin() + static_cast<std::ptrdiff_t>(range.first);
    pinned_.pieces.assign(first, first + static_cast<std::ptrdiff_t>(range.count));
  }
  const auto take = [&](std::size_t list) {
    RowRange& range = tables_.lists[list];
    if (range.taken) return;
    range.taken = true;
    const auto first = tables_.events.begin() + static_cast<std::ptrdiff_t>(range.first);
    pinned_.events.insert(pinned_.events.end(), first,
                          first + static_cast<std::ptrdiff_t>(range.count));
  };
  // One list, or a list of them.
  if (snapshot.host_traces.kind == Kind::kEventList) take(snapshot.host_traces.payload);
  if (snapshot.host_traces.kind == Kind::kTraces) {
    for (const std::size_t list : tables_.traces[snapshot.host_traces.payload]) {
      if (list != kNoList) take(list);
    }
  }
}

/// It belongs to the process: the first of its devices gets it.
void TimelineMaker::GivePinned() {
  if (pinned_.empty()) return;
  if (by_device_.empty()) by_device_.try_emplace(0);
  Bytes reserved = 0;
  for (const PinnedMemory::Piece& piece : pinned_.pieces) reserved += piece.size;
  for (auto& [device, timeline] : by_device_) timeline.host_reserved = reserved;
  by_device_.begin()->second.pinned = std::move(pinned_);
}

/// One device (the usual case) takes the stacks as they are; of several, each gets what it uses.
void TimelineMaker::GiveStacks(StackBudget& copies) {
  if (by_device_.size() == 1) {
    by_device_.begin()->second.stacks = std::move(tables_.stacks);
    return;
  }
  for (auto& [device, timeline] : by_device_) {
    StackCopier copier(tables_.stacks, timeline.stacks, copies, tables_.budget);
    for (Event& e : timeline.events) copier.Copy(e.stack);
    for (Segment& s : timeline.segments) copier.Copy(s.stack);
    for (Block& b : timeline.blocks) {
      copier.Copy(b.stack);
      copier.Copy(b.owner);
    }
    for (ForwardStack& f : timeline.forward_stacks) copier.Copy(f.stack);
    for (EventNote& n : timeline.notes) copier.Copy(n.text);
    for (EventNote& n : timeline.purposes) copier.Copy(n.text);
    for (EventNote& n : timeline.compile_contexts) copier.Copy(n.text);
    for (EventNote& n : timeline.given_categories) copier.Copy(n.text);
    for (BlockNote& n : timeline.given_of_blocks) copier.Copy(n.text);
    for (Event& e : timeline.pinned.events) copier.Copy(e.stack);
    for (Annotation& a : timeline.annotations) copier.Copy(a.name);
  }
}

/// What the document is about; none where it is no memory snapshot.
std::optional<SnapshotRow> SnapshotOf(const Tables& tables, Value root) {
  const auto usable = [](Value v, Kind kind) { return v.kind == kind || v.kind == Kind::kNewList; };
  if (root.kind == Kind::kSnapshot) {
    const SnapshotRow& snapshot = tables.snapshots[root.payload];
    if (usable(snapshot.segments, Kind::kSegmentList) || usable(snapshot.traces, Kind::kTraces)) {
      return snapshot;
    }
  }
  if (root.kind != Kind::kSegmentList) return std::nullopt;
  SnapshotRow snapshot;
  snapshot.segments = root;  // PyTorch 1.13: the list of segments is the whole document
  return snapshot;
}

std::string TextOf(const Tables& tables, Value text) {
  if (text.kind != Kind::kString) return "";
  return CutName(tables.stacks.strings[StringId(text.payload)], kLongestName);
}

/// What all devices of a document share.
void DescribeTimeline(const Tables& tables, Timeline& timeline) {
  timeline.streams = tables.streams.all();
  if (timeline.streams.empty()) timeline.streams.push_back(0);
  timeline.pools = tables.pools.all();
  timeline.settings = tables.settings;
  timeline.settings.roundup_power2_divisions = tables.divisions;
  timeline.events_have_pools = tables.seen[static_cast<std::size_t>(Key::kPoolId)];
  timeline.torch = WrittenBy(tables);
}

}  // namespace

Result<Recording> RecordingOf(Tables& tables, Value root) {
  const std::optional<SnapshotRow> snapshot = SnapshotOf(tables, root);
  if (!snapshot) {
    return Error{.message = "this is no memory snapshot: it has neither segments nor device_traces",
                 .hint = "record one with torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")"};
  }
  // Positions are signed 32-bit numbers from here on.
  if (tables.events.size() >= std::numeric_limits<std::int32_t>::max()) {
    return Error{.message = "there are more than two billion events"};
  }
  const std::string prediction = TextOf(tables, snapshot->prediction);
  const std::string torch = TextOf(tables, snapshot->torch);
  TimelineMaker maker(tables);
  maker.NameCategories(snapshot->categories);
  maker.TakeSegments(snapshot->segments);
  // Before the events of a device may be moved out of their table.
  maker.TakePinned(*snapshot);
  maker.TakeTraces(snapshot->traces);
  maker.TakeAnnotations(snapshot->annotations);
  maker.GivePinned();
  if (maker.by_device().empty()) maker.by_device().try_emplace(0);

  StackBudget copies = tables.stack_budget;
  maker.GiveStacks(copies);
  if (tables.budget.spent()) return ReadBudget::Refusal();
  Recording recording;
  for (auto& [device, timeline] : maker.by_device()) {
    timeline.device = device;
    DescribeTimeline(tables, timeline);
    // A state that the program asked for (memory_snapshot(), MemPool.snapshot()) has these keys in
    // every release since.
    if (root.kind == Kind::kSegmentList && timeline.torch == "2.1") timeline.torch = "2.1 or newer";
    timeline.prediction = prediction;
    if (!prediction.empty()) timeline.torch = torch;
    recording.timelines.push_back(std::move(timeline));
  }
  tables.skipped.AddTo(recording);
  copies.Report(recording.skipped);
  return recording;
}

}  // namespace plimsoll::snapshot

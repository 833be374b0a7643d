// From the builder's tables to one Timeline for each device.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "readers/snapshot/builder.h"
#include "timeline/limits.h"

namespace plimsoll::snapshot {
namespace {
/// Far more than a machine has; each gets tables of its own.
constexpr std::int32_t kMostSnapshotDevices = 64;
}  // namespace

std::uint16_t Builder::FindStream(std::uint64_t stream) {
  const auto known = stream_index_.find(stream);
  if (known != stream_index_.end()) {
    last_stream_index_ = known->second;
  } else if (streams_.size() < kMostStreams) {
    last_stream_index_ = static_cast<std::uint16_t>(streams_.size());
    streams_.push_back(stream);
    stream_index_.emplace(stream, last_stream_index_);
  } else {
    Skip("streams beyond the first 1,024");
    return 0;
  }
  last_stream_ = stream;
  return last_stream_index_;
}

std::uint8_t Builder::PoolIndex(Value v) {
  if (v.kind != Kind::kPair) return 0;
  const PoolId id = pairs_[v.payload];
  const auto known = std::find(pools_.begin(), pools_.end(), id);
  if (known != pools_.end()) return static_cast<std::uint8_t>(known - pools_.begin());
  if (pools_.size() == std::numeric_limits<std::uint8_t>::max()) {
    Skip("pools beyond the first 254");
    return static_cast<std::uint8_t>(pools_.size() - 1);
  }
  pools_.push_back(id);
  return static_cast<std::uint8_t>(pools_.size() - 1);
}

/// Which releases write these keys; research of the literals in every tag.
std::string Builder::WrittenBy() const {
  const auto seen = [&](Key key) { return seen_[static_cast<std::size_t>(key)]; };
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

void Builder::TakeSegments(Value list, std::map<std::int32_t, Timeline>& by_device) {
  if (list.kind != Kind::kSegmentList) return;
  const Range range = lists_[list.payload];
  for (std::size_t i = range.first; i < range.first + range.count; ++i) {
    const SegmentRow& row = segments_[i];
    if (row.device < 0 || row.device >= kMostSnapshotDevices) {
      Skip("segments of devices that no machine has");
      continue;
    }
    Timeline& timeline = by_device[row.device];
    Segment segment = row.segment;
    segment.first_block = timeline.blocks.size();
    if (row.block_list != kNone && !lists_[row.block_list].taken) {
      Range& blocks = lists_[row.block_list];
      blocks.taken = true;
      segment.block_count = blocks.count;
      Address next = segment.address;
      for (std::size_t b = blocks.first; b < blocks.first + blocks.count; ++b) {
        Block block = blocks_[b];
        // Before 2.1 blocks have no address of their own: they lie one after the other.
        if (block.address == 0) block.address = next;
        next = block.address + static_cast<Address>(block.size);
        timeline.blocks.push_back(block);
      }
    }
    timeline.segments.push_back(segment);
  }
}

void Builder::TakeEvents(Timeline& timeline, Range& range, bool only) {
  if (range.taken) return Skip("event lists that stand in the file twice");
  range.taken = true;
  const std::size_t end = range.first + range.count;
  for (const EventNote& note : notes_) {
    if (note.event >= range.first && note.event < end) {
      timeline.notes.push_back({static_cast<EventIndex>(note.event - range.first), note.text});
    }
  }
  for (const ForwardStack& row : forward_) {
    if (row.event >= range.first && row.event < end) {
      timeline.forward_stacks.push_back(
          {static_cast<EventIndex>(row.event - range.first), row.stack});
    }
  }
  if (only && range.first == 0 && range.count == events_.size()) {
    timeline.events = std::move(events_);
  } else {
    timeline.events.assign(events_.begin() + static_cast<std::ptrdiff_t>(range.first),
                           events_.begin() + static_cast<std::ptrdiff_t>(end));
  }
}

void Builder::TakeAnnotations(Value list, std::map<std::int32_t, Timeline>& by_device) {
  if (list.kind != Kind::kAnnotationList) return;
  const Range range = lists_[list.payload];
  for (std::size_t i = range.first; i < range.first + range.count; ++i) {
    const auto found = by_device.find(annotations_[i].second);
    if (found != by_device.end()) found->second.annotations.push_back(annotations_[i].first);
  }
}

namespace {

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
    return frames_.emplace(frame, builder_.AddFrame(copy)).first->second;
  }

  const StackTable& from_;
  StackTable& to_;
  StackBuilder builder_;
  ReadBudget& budget_;
  std::unordered_map<FrameId, FrameId> frames_;
  std::unordered_map<StackId, StackId> stacks_;
};

}  // namespace

/// One device (the usual case) takes the stacks as they are; of several, each gets what it uses.
void Builder::GiveStacks(std::map<std::int32_t, Timeline>& by_device, StackBudget& copies) {
  if (by_device.size() == 1) {
    by_device.begin()->second.stacks = std::move(stacks_);
    return;
  }
  for (auto& [device, timeline] : by_device) {
    StackCopier copier(stacks_, timeline.stacks, copies, budget_);
    for (Event& e : timeline.events) copier.Copy(e.stack);
    for (Segment& s : timeline.segments) copier.Copy(s.stack);
    for (Block& b : timeline.blocks) copier.Copy(b.stack);
    for (ForwardStack& f : timeline.forward_stacks) copier.Copy(f.stack);
    for (EventNote& n : timeline.notes) copier.Copy(n.text);
    for (Annotation& a : timeline.annotations) copier.Copy(a.name);
  }
}

Result<Recording> Builder::Finish(Value root) {
  SnapshotRow snapshot;
  const auto usable = [](Value v, Kind kind) { return v.kind == kind || v.kind == Kind::kNewList; };
  if (root.kind == Kind::kSnapshot &&
      (usable(snapshots_[root.payload].segments, Kind::kSegmentList) ||
       usable(snapshots_[root.payload].traces, Kind::kTraces))) {
    snapshot = snapshots_[root.payload];
  } else if (root.kind == Kind::kSegmentList) {
    snapshot.segments = root;  // PyTorch 1.13: the list of segments is the whole document
  } else {
    return Error{.message = "this is no memory snapshot: it has neither segments nor device_traces",
                 .hint = "record one with torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")"};
  }
  // Positions are signed 32-bit numbers from here on.
  if (events_.size() >= std::numeric_limits<std::int32_t>::max()) {
    return Error{.message = "there are more than two billion events"};
  }

  std::map<std::int32_t, Timeline> by_device;
  TakeSegments(snapshot.segments, by_device);
  if (snapshot.traces.kind == Kind::kTraces) {
    const std::vector<std::size_t>& traces = traces_[snapshot.traces.payload];
    const std::size_t devices = std::min<std::size_t>(traces.size(), kMostSnapshotDevices);
    const auto used =
        std::count_if(traces.begin(), traces.end(), [](std::size_t list) { return list != kNone; });
    for (std::size_t device = 0; device < devices; ++device) {
      if (traces[device] == kNone || lists_[traces[device]].taken) continue;
      TakeEvents(by_device[static_cast<std::int32_t>(device)], lists_[traces[device]], used == 1);
    }
  }
  TakeAnnotations(snapshot.annotations, by_device);
  if (by_device.empty()) by_device.try_emplace(0);

  settings_.roundup_power2_divisions = divisions_;
  Bytes host = 0;
  if (snapshot.host_segments.kind == Kind::kHostSegmentList) {
    const Range range = lists_[snapshot.host_segments.payload];
    for (std::size_t i = 0; i < range.count; ++i) host += host_segments_[range.first + i];
  }
  if (streams_.empty()) streams_.push_back(0);
  Recording recording;
  StackBudget copies = stack_budget_;
  GiveStacks(by_device, copies);
  if (budget_.spent()) return ReadBudget::Refusal();
  for (auto& [device, timeline] : by_device) {
    timeline.device = device;
    timeline.streams = streams_;
    timeline.pools = pools_;
    timeline.settings = settings_;
    timeline.events_have_pools = seen_[static_cast<std::size_t>(Key::kPoolId)];
    timeline.torch = WrittenBy();
    timeline.host_reserved = host;
    recording.timelines.push_back(std::move(timeline));
  }
  for (const auto& [what, count] : skipped_) recording.skipped[what] += count;
  copies.Report(recording.skipped);
  return recording;
}

}  // namespace plimsoll::snapshot

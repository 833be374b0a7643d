// Nsight Systems sees what PyTorch's allocator asks of the driver, and what other libraries (cuDNN,
// NCCL) ask of it behind PyTorch's back. Each allocation there is a segment that is wholly in use,
// and is recorded as both: a segment and a block that fills it.
#include "readers/nsys/nsys.h"

#include <fmt/format.h>

#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "files/read_budget.h"
#include "readers/nsys/memory_rows.h"
#include "readers/sqlite/database.h"
#include "timeline/limits.h"
#include "timeline/stack_builder.h"

namespace plimsoll {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kMagic = "SQLite format 3\0"sv;
constexpr std::size_t kMostTimelines = 1024;

/// The timeline of one process on one device.
class ProcessTimeline {
 public:
  ProcessTimeline(const NsysContent& content, StackBudget& budget, std::int32_t device)
      : content_(content), stack_builder_(timeline.stacks, budget) {
    timeline.device = device;
    timeline.streams = {0};
    streams_.emplace(0, 0);
  }

  void Add(const MemoryRow& row, TimeUs time) {
    Event event{.address = row.address,
                .size = row.bytes,
                .time_us = time,
                .stack = StackOf(row),
                .stream = StreamOf(row.stream)};
    const auto push = [&](Action action) {
      event.action = action;
      timeline.events.push_back(event);
    };
    if (row.freed) {
      push(Action::kFreeRequested);
      push(Action::kFreeCompleted);
      push(Action::kSegmentFree);
    } else {
      push(Action::kSegmentAlloc);
      push(Action::kAlloc);
    }
  }

  Timeline timeline;

 private:
  std::uint16_t StreamOf(std::int64_t stream) {
    const auto id = static_cast<std::uint64_t>(stream);
    if (const auto found = streams_.find(id); found != streams_.end()) return found->second;
    if (timeline.streams.size() >= kMostStreams) return 0;
    const auto index = static_cast<std::uint16_t>(timeline.streams.size());
    timeline.streams.push_back(id);
    streams_.emplace(id, index);
    return index;
  }

  FrameId FrameOf(std::string_view function, std::string_view file) {
    StringTable& strings = timeline.stacks.strings;
    return stack_builder_.AddFrame(
        {.function = strings.Intern(function), .file = strings.Intern(file)});
  }

  std::string_view String(std::int64_t id) const {
    const auto found = content_.strings.find(id);
    return found == content_.strings.end() ? std::string_view() : found->second;
  }

  /// The variable, the API call and its backtrace, as far as they are there.
  StackId StackOf(const MemoryRow& row) {
    ApiCall call;
    const auto found = content_.calls.find({row.global_pid, row.correlation});
    if (found != content_.calls.end()) call = found->second;
    const auto [stack, is_new] =
        stacks_.try_emplace({row.name.value, call.name, call.chain}, StackId());
    if (!is_new) return stack->second;
    std::vector<FrameId> frames;
    if (row.name.valid()) frames.push_back(FrameOf(content_.names[row.name], ""));
    if (!String(call.name).empty()) frames.push_back(FrameOf(String(call.name), ""));
    const auto chain = content_.chains.find(call.chain);
    if (chain != content_.chains.end()) {
      for (const ChainFrame& frame : chain->second) {
        frames.push_back(FrameOf(String(frame.symbol), String(frame.module)));
      }
    }
    if (!frames.empty()) stack->second = stack_builder_.AddStack(frames);
    return stack->second;
  }

  const NsysContent& content_;
  StackBuilder stack_builder_;
  HashMap<std::uint64_t, std::uint16_t> streams_;
  std::map<std::tuple<std::uint32_t, std::int64_t, std::int64_t>, StackId> stacks_;
};

class NsysTimelineBuilder {
 public:
  NsysTimelineBuilder(const NsysContent& content, double share, Recording& recording)
      : content_(content), stack_budget_(share), recording_(recording) {}

  void Build() {
    for (const MemoryRow& row : content_.rows) {
      if (row.kind == MemoryKind::kPageable) {
        ++recording_.skipped["memory events of the host"];
      } else if (row.kind == MemoryKind::kPinned) {
        AddPinned(row);
      } else if (ProcessTimeline* timeline = TimelineOf(row)) {
        timeline->Add(row, Time(row.start_ns));
      } else {
        ++recording_.skipped["memory events of too many processes and devices"];
      }
    }
    Finish();
  }

 private:
  using Key = std::pair<std::int64_t, std::int32_t>;  // process, device

  ProcessTimeline* TimelineOf(const MemoryRow& row) {
    const Key key(row.global_pid, row.device);
    if (const auto found = index_.find(key); found != index_.end()) return found->second;
    if (index_.size() >= kMostTimelines) return nullptr;
    ProcessTimeline& added = timelines_.emplace_back(content_, stack_budget_, row.device);
    index_.emplace(key, &added);
    return &added;
  }

  TimeUs Time(std::int64_t start_ns) const {
    std::int64_t sum = 0;
    if (__builtin_add_overflow(content_.epoch_ns, start_ns, &sum)) sum = start_ns;
    return sum / 1000;
  }

  void AddPinned(const MemoryRow& row) {
    if (row.freed) {
      pinned_.erase({row.global_pid, row.address});
    } else {
      pinned_[{row.global_pid, row.address}] = row.bytes;
    }
  }

  /// Pinned memory belongs to a process, not to a device: its first timeline gets it.
  void AddPinnedTotals() {
    for (const auto& [where, bytes] : pinned_) {
      const auto first = index_.lower_bound({where.first, 0});
      if (first == index_.end() || first->first.first != where.first) continue;
      first->second->timeline.host_reserved += bytes;
    }
  }

  void Finish() {
    AddPinnedTotals();
    stack_budget_.Report(recording_.skipped);
    std::set<std::int64_t> processes;
    std::string names;
    for (auto& [key, timeline] : index_) {
      processes.insert(key.first);
      names += fmt::format("{}process {} on device {}", names.empty() ? "" : ", ",
                           ProcessOf(key.first), key.second);
      recording_.timelines.push_back(std::move(timeline->timeline));
    }
    recording_.format = "Nsight Systems SQLite export";
    // A timeline does not know its process; where there are several, say which is which.
    if (processes.size() > 1) recording_.format += fmt::format(" ({})", names);
  }

  const NsysContent& content_;
  StackBudget stack_budget_;
  Recording& recording_;
  std::deque<ProcessTimeline> timelines_;
  std::map<Key, ProcessTimeline*> index_;
  std::map<std::pair<std::int64_t, std::uint64_t>, Bytes> pinned_;
};

}  // namespace

bool RecogniseNsys(std::string_view bytes) { return bytes.starts_with(kMagic); }

Result<Recording> ReadNsys(const Input& input) {
  Result<std::unique_ptr<Database>> database =
      Database::Open(input, "export it again: nsys export --type=sqlite report.nsys-rep");
  if (!database) return database.error();
  Result<NsysContent> content = ReadContent(**database, input);
  if (!content) return content.error();
  Recording recording;
  recording.file = input.name();
  recording.skipped = content->skipped;
  NsysTimelineBuilder(*content, ShareOf(input), recording).Build();
  if (recording.timelines.empty()) {
    return Error{
        .message = "the database holds memory events of the host only, none of a GPU",
        .file = input.name(),
        .hint = "record a run that uses the GPU with nsys profile --cuda-memory-usage=true"};
  }
  return recording;
}

}  // namespace plimsoll

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "readers/profiler/enclosing.h"
#include "readers/profiler/profiler.h"
#include "readers/profiler/trace_events.h"

namespace plimsoll {
namespace {

/// Where Kineto writes the key: after the properties of the devices, a few kilobytes.
constexpr std::size_t kLookFor = 1 << 20;
constexpr std::size_t kMostDevices = 1024;
/// Marks are repeated for every device; a made-up file must not multiply them.
constexpr std::size_t kMostMarks = 1 << 20;
/// Later than 2001 as microseconds since 1970: such times need no base.
constexpr double kSinceEpoch = 1e15;

constexpr std::string_view kBlank = " \t\r\n";

class TimelineBuilder {
 public:
  TimelineBuilder(TraceContent content, double share, Recording& recording)
      : content_(std::move(content)),
        calls_(FindEnclosingCalls(content_)),
        stack_budget_(share),
        recording_(recording) {}

  void Build() {
    std::vector<std::uint32_t> order(content_.memory.size());
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      return content_.memory[a].ts < content_.memory[b].ts;
    });
    for (const std::uint32_t i : order) Add(i);
    for (Device& device : devices_) {
      AddMarks(device.timeline);
      recording_.timelines.push_back(std::move(device.timeline));
    }
    recording_.skipped.merge(content_.skipped);
    stack_budget_.Report(recording_.skipped);
  }

 private:
  struct Device {
    std::pair<std::int32_t, std::int32_t> key;  // type and number
    Timeline timeline;
    std::unique_ptr<StackMaker> stacks;
  };

  Device* DeviceOf(const TraceMemory& memory) {
    const std::pair key(memory.device_type, memory.device);
    const auto [found, is_new] = index_.try_emplace(key, devices_.size());
    if (!is_new) return &devices_[found->second];
    if (devices_.size() >= kMostDevices) {
      index_.erase(found);
      return nullptr;
    }
    Device& device = devices_.emplace_back();  // a deque: the stacks refer to the timeline
    device.key = key;
    device.timeline.device = memory.device;
    device.timeline.streams = {0};  // the format does not tell them apart
    device.stacks =
        std::make_unique<StackMaker>(calls_, content_.names, device.timeline, stack_budget_);
    return &device;
  }

  TimeUs Time(double ts) const {
    const auto us = static_cast<TimeUs>(ts);
    return ts < kSinceEpoch ? us + content_.base_ns / 1000 : us;
  }

  void Add(std::uint32_t i) {
    const TraceMemory& memory = content_.memory[i];
    Device* const device = DeviceOf(memory);
    if (device == nullptr || device->timeline.events.size() >= kNever - 2) {
      ++recording_.skipped["memory events of too many devices, or too many"];
      return;
    }
    Timeline& timeline = device->timeline;
    Event event{.address = memory.address,
                .size = memory.bytes < 0 ? -memory.bytes : memory.bytes,
                .time_us = Time(memory.ts),
                .stack = device->stacks->StackOf(calls_.of_memory[i])};
    if (memory.out_of_memory) {
      event.action = Action::kOutOfMemory;
      event.address = 0;  // the trace does not say what the driver had
    } else if (!memory.has_address) {
      ++recording_.skipped["memory events without an address"];
      event.action = Action::kOther;  // it carries totals all the same
    } else if (memory.bytes < 0) {
      event.action = Action::kFreeRequested;
      timeline.events.push_back(event);
      event.action = Action::kFreeCompleted;
    } else {
      event.action = Action::kAlloc;
    }
    timeline.events.push_back(event);
    if (memory.allocated < 0 || memory.reserved < 0) return;
    timeline.totals.push_back({.event = static_cast<EventIndex>(timeline.events.size() - 1),
                               .allocated = memory.allocated,
                               .reserved = memory.reserved});
  }

  /// The marks belong to the host's threads, not to a device; each timeline gets them all.
  void AddMarks(Timeline& timeline) const {
    if (content_.marks.size() * devices_.size() > kMostMarks) return;
    for (const TraceMark& mark : content_.marks) {
      const StringId name = timeline.stacks.strings.Intern(content_.names[mark.name]);
      timeline.annotations.push_back({.name = name, .start = true, .time_us = Time(mark.start)});
      timeline.annotations.push_back({.name = name, .start = false, .time_us = Time(mark.end)});
    }
    std::stable_sort(
        timeline.annotations.begin(), timeline.annotations.end(),
        [](const Annotation& a, const Annotation& b) { return a.time_us < b.time_us; });
  }

  TraceContent content_;
  CallTree calls_;
  StackBudget stack_budget_;
  Recording& recording_;
  std::deque<Device> devices_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> index_;
};

Error NoMemoryEvents(const Input& input, const TraceContent& content) {
  if (content.skipped.contains("memory events of the host")) {
    return Error{.message = "the trace has memory events of the host only, none of a GPU",
                 .file = input.name(),
                 .hint = "record ProfilerActivity.CUDA too, and the part that uses the GPU"};
  }
  return Error{
      .message = "the trace has no memory events",
      .file = input.name(),
      .hint = "record it with torch.profiler.profile(profile_memory=True, with_stack=True)"};
}

/// The key itself, not a text that mentions it.
bool HasKey(std::string_view bytes, std::string_view quoted) {
  for (auto at = bytes.find(quoted); at != std::string_view::npos;
       at = bytes.find(quoted, at + quoted.size())) {
    const auto after = bytes.find_first_not_of(kBlank, at + quoted.size());
    if (after != std::string_view::npos && bytes[after] == ':') return true;
  }
  return false;
}

}  // namespace

bool RecogniseChromeTrace(std::string_view bytes) {
  const auto first = bytes.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return false;
  const std::string_view head = bytes.substr(first, kLookFor);
  if (head[0] == '{') return HasKey(head, "\"traceEvents\"");
  if (head[0] != '[') return false;
  const auto second = head.find_first_not_of(kBlank, 1);
  return second != std::string_view::npos && head[second] == '{' && HasKey(head, "\"ph\"");
}

Result<Recording> ReadChromeTrace(const Input& input) {
  ReadBudget budget(input);
  TraceVisitor visitor(budget);
  if (auto error = VisitJson(input, visitor)) return *error;
  if (!visitor.content.is_trace) {
    return Error{.message = "no list of trace events in the file", .file = input.name()};
  }
  if (visitor.content.memory.empty()) return NoMemoryEvents(input, visitor.content);
  Recording recording;
  recording.file = input.name();
  recording.format = "torch.profiler chrome trace";
  TimelineBuilder(std::move(visitor.content), ShareOf(input), recording).Build();
  return recording;
}

}  // namespace plimsoll

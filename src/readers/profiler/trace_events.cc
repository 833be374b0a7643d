#include "readers/profiler/trace_events.h"

#include <cmath>
#include <utility>

#include "base/hash.h"
#include "timeline/limits.h"
#include "timeline/stack_builder.h"

namespace plimsoll {
namespace {

/// Times are microseconds since 1970 (1.8e15 today) or since the file's base; more is no time.
constexpr double kLatest = 9e15;

/// c10::DeviceType. Everything but the host counts: CUDA (1, also ROCm's), XPU (12), MPS (13), …
constexpr std::int64_t kHost = 0;
constexpr std::int64_t kCuda = 1;

/// "<built-in method append of list object at 0x7f31c8>": the object differs from call to call and
/// says nothing; without it the same call is the same frame.
std::string_view WithoutObject(std::string_view name) {
  return name.substr(0, name.rfind(" at 0x"));
}

/// A thread is named by a number, or in some rows by a text ("PyTorch Profiler").
std::int64_t Number(const JsonScalar& value) {
  if (const auto number = value.AsInteger()) return *number;
  return static_cast<std::int64_t>(HashBytes(value.text));
}

Bytes Total(std::optional<Bytes> stated) {
  return stated && *stated >= 0 && *stated <= kLargestSize ? *stated : -1;
}

}  // namespace

void TraceVisitor::Pending::Clear() {
  name.clear();  // keeps the buffers
  category.clear();
  phase = 0;
  pid = tid = 0;
  ts = dur = std::nullopt;
  device_type = device = std::nullopt;
  address = std::nullopt;
  bytes = allocated = reserved = std::nullopt;
}

void TraceVisitor::Open(bool object) {
  ++depth_;
  const Field field = std::exchange(field_, Field::kNone);
  if (!object && (depth_ == 1 || (depth_ == 2 && field == Field::kTraceEvents))) {
    event_depth_ = depth_ + 1;
    content.is_trace = true;
  } else if (object && depth_ == event_depth_) {
    in_event_ = true;
    event_.Clear();
  } else if (in_event_ && object && depth_ == event_depth_ + 1 && field == Field::kArgs) {
    in_args_ = true;
  }
}

void TraceVisitor::Close() {
  if (in_args_ && depth_ == event_depth_ + 1) in_args_ = false;
  if (in_event_ && depth_ == event_depth_) {
    in_event_ = false;
    EndEvent();
  }
  --depth_;
  if (depth_ + 1 < event_depth_) event_depth_ = kNowhere;  // the list of events is over
  field_ = Field::kNone;
}

void TraceVisitor::Key(std::string_view key) {
  field_ = Field::kNone;
  if (depth_ == 1) field_ = FileField(key);
  if (in_event_ && depth_ == event_depth_) field_ = EventField(key);
  if (in_args_ && depth_ == event_depth_ + 1) field_ = ArgField(key);
}

void TraceVisitor::Scalar(const JsonScalar& value) {
  if (field_ == Field::kNone) return;
  if (in_args_) {
    SetArgField(value);
  } else if (in_event_) {
    SetEventField(value);
  } else if (field_ == Field::kBaseTime) {
    content.base_ns = value.AsInteger().value_or(0);
  }
  field_ = Field::kNone;
}

TraceVisitor::Field TraceVisitor::FileField(std::string_view key) {
  if (key == "traceEvents") return Field::kTraceEvents;
  if (key == "baseTimeNanoseconds") return Field::kBaseTime;
  return Field::kNone;
}

TraceVisitor::Field TraceVisitor::EventField(std::string_view key) {
  if (key == "ph") return Field::kPhase;
  if (key == "cat") return Field::kCategory;
  if (key == "name") return Field::kName;
  if (key == "pid") return Field::kPid;
  if (key == "tid") return Field::kTid;
  if (key == "ts") return Field::kTs;
  if (key == "dur") return Field::kDur;
  if (key == "args") return Field::kArgs;
  return Field::kNone;
}

TraceVisitor::Field TraceVisitor::ArgField(std::string_view key) {
  if (key == "Device Type") return Field::kDeviceType;
  if (key == "Device Id") return Field::kDeviceId;
  if (key == "Addr") return Field::kAddr;
  if (key == "Bytes") return Field::kBytes;
  if (key == "Total Allocated") return Field::kTotalAllocated;
  if (key == "Total Reserved") return Field::kTotalReserved;
  return Field::kNone;
}

void TraceVisitor::SetEventField(const JsonScalar& value) {
  switch (field_) {
    case Field::kPhase:
      event_.phase = value.text.size() == 1 ? value.text[0] : '\0';
      break;
    case Field::kCategory:
      event_.category = value.text;
      break;
    case Field::kName:
      event_.name = value.text;
      break;
    case Field::kPid:
      event_.pid = Number(value);
      break;
    case Field::kTid:
      event_.tid = Number(value);
      break;
    case Field::kTs:
      event_.ts = value.AsReal();
      break;
    case Field::kDur:
      event_.dur = value.AsReal();
      break;
    default:
      break;
  }
}

void TraceVisitor::SetArgField(const JsonScalar& value) {
  switch (field_) {
    case Field::kDeviceType:
      event_.device_type = value.AsInteger();
      break;
    case Field::kDeviceId:
      event_.device = value.AsInteger();
      break;
    case Field::kAddr:
      event_.address = value.AsAddress();
      break;
    case Field::kBytes:
      event_.bytes = value.AsInteger();
      break;
    case Field::kTotalAllocated:
      event_.allocated = value.AsInteger();
      break;
    case Field::kTotalReserved:
      event_.reserved = value.AsInteger();
      break;
    default:
      break;
  }
}

std::uint32_t TraceVisitor::Thread() {
  const auto next = static_cast<std::uint32_t>(threads_.size());
  return threads_.try_emplace({event_.pid, event_.tid}, next).first->second;
}

void TraceVisitor::EndEvent() {
  if (event_.name == "[memory]") {
    AddMemory(false);
  } else if (event_.name == "[OutOfMemory]") {
    AddMemory(true);
  } else if (event_.phase == 'X') {
    AddSpan();
  }
}

void TraceVisitor::AddMemory(bool out_of_memory) {
  const std::int64_t type = event_.device_type.value_or(kCuda);
  if (type == kHost) return Skip("memory events of the host");
  if (!event_.ts || !(std::fabs(*event_.ts) < kLatest)) {
    return Skip("memory events without a usable time");
  }
  const std::int64_t device = event_.device.value_or(0);
  const bool sane = type > 0 && type < 1024 && device >= 0 && device < (1 << 20);
  const Bytes bytes = event_.bytes.value_or(INT64_MAX);
  const Bytes most = out_of_memory ? kMostInAll : kLargestSize;
  if (!sane || bytes > most || bytes < -most) {
    return Skip("memory events without a usable size or device");
  }
  const Bytes size = bytes < 0 ? -bytes : bytes;
  if (!out_of_memory) {
    if (size > kMostInAll - in_all_) return Skip("memory events beyond 256 pebibytes in all");
    in_all_ += size;
  }
  // The event itself, and what it becomes.
  if (!budget_.Take(sizeof(TraceMemory) + 2 * sizeof(Event))) return;
  content.memory.push_back({.ts = *event_.ts,
                            .address = event_.address.value_or(0),
                            .bytes = bytes,
                            .allocated = Total(event_.allocated),
                            .reserved = Total(event_.reserved),
                            .device_type = static_cast<std::int32_t>(type),
                            .device = static_cast<std::int32_t>(device),
                            .thread = Thread(),
                            .out_of_memory = out_of_memory,
                            .has_address = event_.address.has_value()});
}

void TraceVisitor::AddSpan() {
  const bool python = event_.category == "python_function";
  // "Operator" is what the first releases wrote.
  const bool op = event_.category == "cpu_op" || event_.category == "Operator";
  const bool mark = event_.category == "user_annotation";
  if (!python && !op && !mark) return;
  const double start = event_.ts.value_or(kLatest);
  const double dur = event_.dur.value_or(-1);
  if (!(std::fabs(start) < kLatest) || !(dur >= 0 && dur < kLatest)) {
    return Skip("operators without a usable time");
  }
  const std::string_view whole = WithoutObject(event_.name);
  const std::size_t known = content.names.size();
  const StringId name = content.names.Intern(
      whole.size() <= kLongestName ? whole : std::string_view(CutName(whole, kLongestName)));
  if (content.names.size() > known) budget_.Take(content.names[name].size() + 112);
  if (!budget_.Take(sizeof(TraceSpan))) return;
  if (mark) {
    content.marks.push_back({.start = start, .end = start + dur, .name = name});
    return;
  }
  content.spans.push_back({.start = start,
                           .end = start + dur,
                           .thread = Thread(),
                           .name = name,
                           .order = static_cast<std::uint32_t>(content.spans.size()),
                           .python = python});
}

}  // namespace plimsoll

// What a chrome trace of torch.profiler holds about memory, as it stands in the file.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/interner.h"
#include "files/json_visit.h"
#include "files/read_budget.h"

namespace plimsoll {

/// One [memory] or [OutOfMemory] event:
///   {"ph": "i", "name": "[memory]", "pid": 1885, "tid": 2227, "ts": 3856293356148.524, "args": {
///    "Total Reserved": 157286400, "Total Allocated": 153647104, "Bytes": 25731584,
///    "Device Id": 0, "Device Type": 1, "Addr": 139843396960256}}
struct TraceMemory {
  double ts = 0;  // microseconds
  std::uint64_t address = 0;
  Bytes bytes = 0;       // negative: freed
  Bytes allocated = -1;  // -1: not said
  Bytes reserved = -1;
  std::int32_t device_type = 1;
  std::int32_t device = 0;
  std::uint32_t thread = 0;
  bool out_of_memory = false;
  bool has_address = false;
};

/// A stretch of time on one thread in which an operator or a Python function ran.
struct TraceSpan {
  double start = 0;
  double end = 0;
  std::uint32_t thread = 0;
  StringId name;
  std::uint32_t order = 0;  // in the file
  bool python = false;
};

/// A stretch that the program marked: record_function, Optimizer.step, ProfilerStep#3.
struct TraceMark {
  double start = 0;
  double end = 0;
  StringId name;
};

struct TraceContent {
  std::vector<TraceMemory> memory;
  std::vector<TraceSpan> spans;
  std::vector<TraceMark> marks;
  StringTable names;
  /// What the times count from. Kineto writes it since 2024; before, times count from 1970.
  std::int64_t base_ns = 0;
  bool is_trace = false;
  std::map<std::string, std::int64_t> skipped;
};

/// Collects a TraceContent from the calls of VisitJson.
class TraceVisitor final : public JsonVisitor {
 public:
  explicit TraceVisitor(ReadBudget& budget) : budget_(budget) {}
  void Open(bool object) override;
  void Close() override;
  void Key(std::string_view key) override;
  void Scalar(const JsonScalar& value) override;

  bool Enough() const override { return budget_.spent(); }

  TraceContent content;

 private:
  enum class Field : std::uint8_t {
    kNone,
    // Of the whole file.
    kTraceEvents,
    kBaseTime,
    // Of an event.
    kPhase,
    kCategory,
    kName,
    kPid,
    kTid,
    kTs,
    kDur,
    kArgs,
    // Of a memory event's args.
    kDeviceType,
    kDeviceId,
    kAddr,
    kBytes,
    kTotalAllocated,
    kTotalReserved,
  };
  /// The event that is being read. Its keys may come in any order.
  struct Pending {
    std::string name;
    std::string category;
    char phase = 0;
    std::int64_t pid = 0;
    std::int64_t tid = 0;
    std::optional<double> ts;
    std::optional<double> dur;
    std::optional<std::int64_t> device_type;
    std::optional<std::int64_t> device;
    std::optional<std::uint64_t> address;
    std::optional<Bytes> bytes;
    std::optional<Bytes> allocated;
    std::optional<Bytes> reserved;
    void Clear();
  };

  static Field FileField(std::string_view key);
  static Field EventField(std::string_view key);
  static Field ArgField(std::string_view key);
  void SetEventField(const JsonScalar& value);
  void SetArgField(const JsonScalar& value);
  void EndEvent();
  void AddMemory(bool out_of_memory);
  void AddSpan();
  std::uint32_t Thread();
  void Skip(const char* why) { ++content.skipped[why]; }

  static constexpr std::size_t kNowhere = std::numeric_limits<std::size_t>::max();

  ReadBudget& budget_;
  std::size_t depth_ = 0;
  std::size_t event_depth_ = kNowhere;  // depth inside an event's object
  bool in_event_ = false;
  bool in_args_ = false;
  Field field_ = Field::kNone;
  Bytes in_all_ = 0;  // sizes so far
  Pending event_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::uint32_t> threads_;
};

}  // namespace plimsoll

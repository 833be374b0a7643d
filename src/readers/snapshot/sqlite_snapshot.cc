// A snapshot as tables of SQLite: what PyTorch's `_dump_snapshot_sqlite` was proposed to write
// (pull request 178670). Which columns there are is up to who wrote it; those that we know are
// read.
#include <map>
#include <optional>
#include <string>

#include "readers/snapshot/builder.h"
#include "readers/snapshot/json_values.h"
#include "readers/snapshot/snapshot.h"
#include "readers/sqlite/database.h"

namespace plimsoll {
namespace {

using snapshot::Builder;
using snapshot::Kind;
using snapshot::kNoMemo;
using snapshot::Value;

constexpr std::string_view kSqliteMagic("SQLite format 3\0", 16);
constexpr std::string_view kWriteAgain =
    "write a pickle: torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")";

/// The columns of a table that mean something to us, and the keys of a snapshot that they are.
struct Columns {
  std::vector<std::string> names;
  std::vector<std::string> keys;
};

/// `addr` and `address` are the same thing, as are `id` and nothing at all.
Columns EventColumns() {
  return {{"action", "addr", "size", "stream", "time_us", "frames", "device_free", "user_metadata",
           "compile_context", "category"},
          {"action", "addr", "size", "stream", "time_us", "frames", "device_free", "user_metadata",
           "compile_context", "category"}};
}
Columns BlockColumns() {
  return {{"state", "addr", "address", "size", "requested_size", "frames"},
          {"state", "address", "address", "size", "requested_size", "frames"}};
}
Columns SegmentColumns() {
  return {{"total_size", "addr", "address", "device", "stream", "segment_type", "is_expandable",
           "frames"},
          {"total_size", "address", "address", "device", "stream", "segment_type", "is_expandable",
           "frames"}};
}

class SqliteReader {
 public:
  SqliteReader(Database& database, Builder& builder) : database_(database), builder_(builder) {}

  Value Document() {
    ReadBlocks();
    Value segments = NewList();
    std::vector<Value> rows = ReadSegments();
    builder_.Append(segments, rows);
    const Value traces = ReadTraces();
    const Value items[] = {builder_.String("segments"), segments, builder_.String("device_traces"),
                           traces};
    Value document{Kind::kNewDict, kNoMemo};
    builder_.Extend(document, items);
    return document;
  }

 private:
  static Value NewList() { return {Kind::kNewList, kNoMemo}; }

  /// What stands in a column: a number, a text, or the JSON of frames.
  Value Cell(const TableRows& row, std::size_t column, const std::string& key) {
    if (const auto number = row.Integer(column)) {
      return key == "is_expandable" ? Value{Kind::kBool, *number != 0 ? 1u : 0u}
                                    : Value::Int(*number);
    }
    const std::string_view text = row.Text(column);
    if (text.empty()) return {};
    if (key != "frames") return builder_.String(text);
    snapshot::JsonValues frames(builder_);
    return VisitJson(text, frames) ? Value{} : frames.root();
  }

  Value Dict(const TableRows& row, const Columns& columns, std::vector<Value> items) {
    for (std::size_t i = 0; i < columns.names.size(); ++i) {
      const Value value = Cell(row, i, columns.keys[i]);
      if (value.kind == Kind::kNone) continue;
      items.push_back(builder_.String(columns.keys[i]));
      items.push_back(value);
    }
    Value dict{Kind::kNewDict, kNoMemo};
    builder_.Extend(dict, items);
    return dict;
  }

  /// Rows of blocks become rows of ours only with their segment, since lists are ranges of rows.
  void ReadBlocks() {
    const Columns columns = BlockColumns();
    std::vector<std::string> names = columns.names;
    names.push_back("segment_id");
    TableRows rows = database_.Rows("blocks", names);
    while (!builder_.budget().spent() && rows.Next()) {
      std::vector<Value> items;
      for (std::size_t i = 0; i < columns.names.size(); ++i) {
        const Value value = Cell(rows, i, columns.keys[i]);
        if (value.kind == Kind::kNone) continue;
        items.push_back(builder_.String(columns.keys[i]));
        items.push_back(value);
      }
      builder_.budget().Take(items.size() * sizeof(Value) + 64);
      blocks_[rows.Integer(columns.names.size()).value_or(0)].push_back(std::move(items));
    }
  }

  std::vector<Value> ReadSegments() {
    const Columns columns = SegmentColumns();
    std::vector<std::string> names = columns.names;
    names.insert(names.end(), {"id", "segment_id"});
    TableRows rows = database_.Rows("segments", names);
    std::vector<Value> segments;
    while (!builder_.budget().spent() && rows.Next()) {
      const auto id = rows.Integer(columns.names.size());
      const auto other = rows.Integer(columns.names.size() + 1);
      std::vector<Value> blocks;
      if (const auto own = blocks_.find(id.value_or(other.value_or(0))); own != blocks_.end()) {
        for (const std::vector<Value>& items : own->second) {
          Value& block = blocks.emplace_back(Value{Kind::kNewDict, kNoMemo});
          builder_.Extend(block, items);
        }
        blocks_.erase(own);
      }
      Value list = NewList();
      builder_.Append(list, blocks);
      builder_.budget().Take(sizeof(Value));
      segments.push_back(Dict(rows, columns, {builder_.String("blocks"), list}));
    }
    return segments;
  }

  /// One list for each device. Rows of one device must be together for that, so they are read once
  /// for each that is there.
  Value ReadTraces() {
    constexpr std::int64_t kMostTraced = 64;
    std::map<std::int64_t, std::int64_t> events_of;
    TableRows devices = database_.Rows("device_traces", {"action", "device"});
    while (devices.Next()) {
      const std::int64_t device = devices.Integer(1).value_or(0);
      if (device >= 0 && device < kMostTraced) ++events_of[device];
    }
    Value traces = NewList();
    const std::int64_t last = events_of.empty() ? -1 : events_of.rbegin()->first;
    for (std::int64_t device = 0; device <= last; ++device) {
      Value list = NewList();
      if (events_of.contains(device)) ReadEvents(device, list);
      builder_.Append(traces, std::span(&list, 1));
    }
    return traces;
  }

  void ReadEvents(std::int64_t device, Value& list) {
    const Columns columns = EventColumns();
    std::vector<std::string> names = columns.names;
    names.push_back("device");
    TableRows rows = database_.Rows("device_traces", names);
    while (!builder_.budget().spent() && rows.Next()) {
      if (rows.Integer(columns.names.size()).value_or(0) != device) continue;
      const Value event = Dict(rows, columns, {});
      builder_.Append(list, std::span(&event, 1));
    }
  }

  Database& database_;
  Builder& builder_;
  std::map<std::int64_t, std::vector<std::vector<Value>>> blocks_;  // by segment
};

}  // namespace

bool RecogniseSqliteSnapshot(std::string_view bytes) {
  // The schema stands at the beginning of such a file.
  constexpr std::size_t kSchema = std::size_t{64} << 10;
  return bytes.starts_with(kSqliteMagic) &&
         bytes.substr(0, kSchema).find("device_traces") != std::string_view::npos;
}

Result<Recording> ReadSqliteSnapshot(const Input& input) {
  Result<std::unique_ptr<Database>> database = Database::Open(input, kWriteAgain);
  if (!database) return database.error();
  Builder builder(input.size());
  const Value document = SqliteReader(**database, builder).Document();
  if ((*database)->error()) return *(*database)->error();
  if (builder.budget().spent()) return ReadBudget::Refusal();
  Result<Recording> recording = builder.Finish(document);
  if (recording) {
    recording->file = input.name();
    recording->format = "PyTorch memory snapshot (SQLite)";
  }
  return recording;
}

}  // namespace plimsoll

// Builds Timelines from the dicts and lists of a memory snapshot, handed over innermost first.
//
// A dict is recognised by its keys, not by where it stands: "action" makes it an event, "blocks" a
// segment, "filename" a frame. So one builder serves every dialect (pickle protocols, the C++
// writer, JSON, the list form of 1.13) and no order is assumed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "files/input.h"
#include "files/read_budget.h"
#include "readers/snapshot/tables.h"
#include "readers/snapshot/tracebacks.h"
#include "readers/snapshot/value.h"
#include "readers/snapshot/words.h"
#include "timeline/recording.h"
#include "timeline/stack_builder.h"

namespace plimsoll::snapshot {

class Builder {
 public:
  /// The file's size bounds what it can legitimately ask for.
  explicit Builder(InputSize file);
  Builder(const Builder&) = delete;

  Value String(std::string_view text) { return {Kind::kString, words_.Add(text).index()}; }
  /// Adds keys and values, alternating, to a dict. A new dict takes its type from them.
  void Extend(Value& dict, std::span<const Value> items);
  /// Adds items to a list. A new list takes its type from them.
  void Append(Value& list, std::span<const Value> items);
  Value Tuple(std::span<const Value> items);
  /// The stack of these frames, each distinct one once.
  Value Stack(std::span<const FrameId> frames);
  /// What a key means, wherever it stands.
  Key KeyOf(Value v) const { return words_.KeyOf(v); }
  struct Field {
    Key key = Key::kUnknown;
    Value value;
  };
  /// What Extend makes of a new dict with these keys, of which the first is "action".
  Value AddEvent(std::span<const Field> fields);
  /// What the tables may take; once it is spent, the reader gives up.
  ReadBudget& budget() { return tables_.budget; }

  /// Takes the document's root. Nothing may be added afterwards.
  Result<Recording> Finish(Value root) { return RecordingOf(tables_, root); }

 private:
  Value NewRow(Kind kind);
  void SetField(Value row, Key key, Value key_value, Value value);
  void SetEventField(Event& event, std::size_t row, Key key, Value value);
  void SetBlockField(std::size_t row, Key key, Value value);
  void SetSegmentField(std::size_t row, Key key, Value value);
  void SetFrame(Value& dict, std::span<const Value> items);
  void AppendRows(Value& list, Kind item_kind, std::span<const Value> items);
  void AppendFrames(Value& list, std::span<const Value> items);
  void AppendTraces(Value& list, std::span<const Value> items);

  std::uint16_t StreamOf(Value v) {
    return tables_.streams.IndexOf(v.kind == Kind::kInt ? v.payload : 0, tables_.skipped);
  }
  std::uint8_t PoolOf(Value v);
  void NoteContext(std::size_t row, Value value);
  void TakeLabels(Value& dict, std::span<const Value> items);
  StringId MetadataOf(StringId text);
  StackId ForwardStackOf(Value strings);
  Bytes SizeOf(Value v);

  Tables tables_;
  StackBuilder stack_builder_{tables_.stacks, tables_.stack_budget};
  Words words_{tables_.stacks.strings, tables_.budget};
  Tracebacks tracebacks_{words_, tables_.stacks.strings, stack_builder_, tables_.budget};
  HashMap<std::uint64_t, StackId> forward_cache_;  // by the list of their texts
  StringId no_text_;                               // "", which most events carry as their metadata
  StringId no_context_;                            // "N/A", likewise
  HashMap<std::uint32_t, StringId> metadata_;      // texts of JSON, as labels
  std::vector<FrameId> scratch_frames_;
  std::size_t rebuild_budget_;
  std::size_t label_budget_;  // of texts made of dictionaries
  Bytes size_total_ = 0;
};

}  // namespace plimsoll::snapshot

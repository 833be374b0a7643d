// Lists: what their items are decides what they become.
#include <algorithm>
#include <charconv>

#include "readers/snapshot/builder.h"

namespace plimsoll::snapshot {
namespace {

/// Splits `File "model.py", line 12, in forward` out of a traceback's text; false if there is none.
/// On success `text` is advanced past it.
bool NextTracebackLine(std::string_view& text, std::string_view& file, int& line,
                       std::string_view& function) {
  while (true) {
    const std::size_t at = text.find("File \"");
    if (at == std::string_view::npos) return false;
    text.remove_prefix(at + 6);
    const std::size_t quote = text.find('"');
    if (quote == std::string_view::npos) return false;
    file = text.substr(0, quote);
    text.remove_prefix(quote + 1);
    if (!text.starts_with(", line ")) continue;
    text.remove_prefix(7);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), line);
    if (error != std::errc()) continue;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    function = "";
    if (text.starts_with(", in ")) {
      text.remove_prefix(5);
      function = text.substr(0, text.find_first_of("\r\n"));
      text.remove_prefix(function.size());
    }
    return true;
  }
}

}  // namespace

Kind Builder::ListOf(Kind item) {
  switch (item) {
    case Kind::kEvent:
      return Kind::kEventList;
    case Kind::kBlock:
      return Kind::kBlockList;
    case Kind::kSegment:
      return Kind::kSegmentList;
    case Kind::kAnnotation:
      return Kind::kAnnotationList;
    case Kind::kHostSegment:
      return Kind::kHostSegmentList;
    default:
      return Kind::kOpaque;
  }
}

void Builder::Append(Value& list, std::span<const Value> items) {
  if (items.empty()) return;
  const Kind first = items.front().kind;
  const bool fresh = list.kind == Kind::kNewList;
  switch (first) {
    case Kind::kFrame:
      return AppendFrames(list, items);
    case Kind::kEvent:
    case Kind::kBlock:
    case Kind::kSegment:
    case Kind::kAnnotation:
    case Kind::kHostSegment:
      if (fresh) {
        lists_.emplace_back();
        list = {ListOf(first), lists_.size() - 1};
      }
      if (list.kind == ListOf(first)) return AppendRows(list, first, items);
      break;
    case Kind::kEventList:
    case Kind::kNewList:  // a device without events
      return AppendTraces(list, items);
    case Kind::kHistory:
      // The newest entry stands for the list.
      if (fresh) list = items.front();
      return;
    case Kind::kString:
      if (fresh) {
        string_lists_.emplace_back();
        list = {Kind::kStrings, string_lists_.size() - 1};
      }
      if (list.kind != Kind::kStrings) break;
      for (Value item : items) {
        if (item.kind == Kind::kString) {
          string_lists_[list.payload].push_back(StringId(item.payload));
        }
      }
      return;
    case Kind::kInt:
      if (fresh) list = Tuple(items);  // a pool id that was re-pickled as a list
      return;
    default:
      break;
  }
  if (fresh) list = {Kind::kOpaque, 0};
}

/// Rows are made in the order of the document, so a list of them is a range. An item that stands
/// somewhere else (the same object listed twice) is left out.
void Builder::AppendRows(Value& list, Kind item_kind, std::span<const Value> items) {
  Range& range = lists_[list.payload];
  if (range.count == 0) range.first = items.front().payload;
  for (Value item : items) {
    if (item.kind == item_kind && item.payload == range.first + range.count) {
      ++range.count;
    } else {
      Skip("list items that are out of place");
    }
  }
}

void Builder::AppendFrames(Value& list, std::span<const Value> items) {
  if (list.kind != Kind::kNewList && list.kind != Kind::kStack) return;
  scratch_frames_.clear();
  if (list.kind == Kind::kStack) {
    // CPython writes lists in pieces of a thousand, so this is rare. A file that adds one frame at
    // a time would make the cost quadratic; it loses its tail instead.
    const std::span<const FrameId> before = stacks_.stack(StackId(list.payload));
    if (before.size() + items.size() > rebuild_budget_) {
      return Skip("frames of stacks that are written in too many pieces");
    }
    rebuild_budget_ -= before.size() + items.size();
    scratch_frames_.assign(before.begin(), before.end());
  }
  for (Value item : items) {
    if (item.kind == Kind::kFrame) scratch_frames_.push_back(FrameId(item.payload));
  }
  list = Stack(scratch_frames_);
}

void Builder::AppendTraces(Value& list, std::span<const Value> items) {
  if (list.kind == Kind::kNewList) {
    traces_.emplace_back();
    list = {Kind::kTraces, traces_.size() - 1};
  }
  if (list.kind != Kind::kTraces) return;
  for (Value item : items) {
    traces_[list.payload].push_back(item.kind == Kind::kEventList ? item.payload : kNone);
  }
}

void Builder::UseOriginalLine(std::string_view trace, Frame& frame) {
  std::string_view file;
  std::string_view function;
  int line = 0;
  // The last entry is the innermost: the user's own line that the compiled code came from.
  while (NextTracebackLine(trace, file, line, function)) {
    frame.file = StringId(String(file).payload);
    frame.function = StringId(String(function).payload);
    frame.line = line;
  }
}

StackId Builder::ForwardStackOf(Value strings) {
  const auto cached = forward_cache_.find(strings.payload);
  if (cached != forward_cache_.end()) return cached->second;
  std::vector<FrameId> frames;
  for (StringId text : string_lists_[strings.payload]) {
    std::string_view rest = stacks_.strings[text];
    std::string_view file;
    std::string_view function;
    int line = 0;
    while (NextTracebackLine(rest, file, line, function)) {
      Frame frame{.function = StringId(String(function).payload),
                  .file = StringId(String(file).payload),
                  .line = line};
      frames.push_back(InternFrame(frame));
    }
  }
  // A traceback lists the innermost call last, a stack first.
  std::reverse(frames.begin(), frames.end());
  const StackId id(Stack(frames).payload);
  forward_cache_.emplace(strings.payload, id);
  return id;
}

}  // namespace plimsoll::snapshot

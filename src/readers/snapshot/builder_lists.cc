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
        AddRow(lists_);
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
        AddRow(string_lists_);
        list = {Kind::kStrings, string_lists_.size() - 1};
      }
      if (list.kind != Kind::kStrings) break;
      for (Value item : items) {
        if (item.kind == Kind::kString) {
          AddRow(string_lists_[list.payload], StringId(item.payload));
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
    AddRow(traces_);
    list = {Kind::kTraces, traces_.size() - 1};
  }
  if (list.kind != Kind::kTraces) return;
  for (Value item : items) {
    AddRow(traces_[list.payload], item.kind == Kind::kEventList ? item.payload : kNone);
  }
}

std::span<const FrameId> Builder::FramesOf(StringId traceback) {
  if (!traceback.valid()) return {};
  const auto [found, is_new] = tracebacks_.try_emplace(traceback.value);
  auto& [first, count] = found->second;
  if (is_new) {
    first = traceback_frames_.size();
    std::string_view rest = stacks_.strings[traceback];
    std::string_view file;
    std::string_view function;
    int line = 0;
    while (NextTracebackLine(rest, file, line, function)) {
      const Frame frame{.function = StringId(String(function).payload),
                        .file = StringId(String(file).payload),
                        .line = line};
      AddRow(traceback_frames_, stack_builder_.AddFrame(frame));
    }
    count = traceback_frames_.size() - first;
  }
  return std::span(traceback_frames_).subspan(first, count);
}

StackId Builder::ForwardStackOf(Value strings) {
  const auto [cached, is_new] = forward_cache_.try_emplace(strings.payload);
  if (!is_new) return cached->second;
  // A traceback lists the innermost call last, a stack first.
  std::vector<FrameId> frames;
  const std::vector<StringId>& texts = string_lists_[strings.payload];
  for (auto text = texts.rbegin(); text != texts.rend() && frames.size() < kDeepestStack; ++text) {
    const std::span<const FrameId> lines = FramesOf(*text);
    const auto some = lines.last(std::min(lines.size(), kDeepestStack - frames.size()));
    frames.insert(frames.end(), some.rbegin(), some.rend());
  }
  cached->second = StackId(Stack(frames).payload);
  return cached->second;
}

}  // namespace plimsoll::snapshot

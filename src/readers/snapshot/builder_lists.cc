// Lists: what their items are decides what they become.
#include "readers/snapshot/builder.h"

namespace plimsoll::snapshot {
namespace {

Kind ListOf(Kind item) {
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

}  // namespace

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
        AddRow(tables_.budget, tables_.lists);
        list = {ListOf(first), tables_.lists.size() - 1};
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
        AddRow(tables_.budget, tables_.string_lists);
        list = {Kind::kStrings, tables_.string_lists.size() - 1};
      }
      if (list.kind != Kind::kStrings) break;
      for (Value item : items) {
        if (item.kind == Kind::kString) {
          AddRow(tables_.budget, tables_.string_lists[list.payload], StringId(item.payload));
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

/// An item that stands outside of the range (the same object listed twice) is left out.
void Builder::AppendRows(Value& list, Kind item_kind, std::span<const Value> items) {
  RowRange& range = tables_.lists[list.payload];
  if (range.count == 0) range.first = items.front().payload;
  for (Value item : items) {
    if (item.kind == item_kind && item.payload == range.first + range.count) {
      ++range.count;
    } else {
      tables_.skipped.Count("list items that are out of place");
    }
  }
}

void Builder::AppendFrames(Value& list, std::span<const Value> items) {
  if (list.kind != Kind::kNewList && list.kind != Kind::kStack) return;
  scratch_frames_.clear();
  if (list.kind == Kind::kStack) {
    // CPython writes lists in pieces of a thousand, so this is rare. A file that adds one frame at
    // a time would make the cost quadratic; it loses its tail instead.
    const std::span<const FrameId> before = tables_.stacks.stack(StackId(list.payload));
    if (before.size() + items.size() > rebuild_budget_) {
      return tables_.skipped.Count("frames of stacks that are written in too many pieces");
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
    AddRow(tables_.budget, tables_.traces);
    list = {Kind::kTraces, tables_.traces.size() - 1};
  }
  if (list.kind != Kind::kTraces) return;
  for (Value item : items) {
    AddRow(tables_.budget, tables_.traces[list.payload],
           item.kind == Kind::kEventList ? item.payload : kNoList);
  }
}

}  // namespace plimsoll::snapshot

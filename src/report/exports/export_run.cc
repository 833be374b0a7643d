#include "report/exports/export_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "report/format/json_values.h"

namespace plimsoll {
namespace {

using Kind = HistoryChange::Kind;

void AddBlockChanges(const History& history, std::vector<HistoryChange>& changes) {
  for (std::uint32_t i = 0; i < history.blocks.size(); ++i) {
    const HistoryBlock& block = history.blocks[i];
    // Never alive; applied, it would end before it begins.
    if (block.released <= block.made) continue;
    changes.push_back({block.made, Kind::kMake, i});
    if (block.released == kNotYet) continue;
    changes.push_back({block.released, Kind::kRelease, i});
    if (block.freed > block.released && block.freed != kNotYet) {
      changes.push_back({block.freed, Kind::kFree, i});
    }
  }
}

void AddSpanChanges(const History& history, std::vector<HistoryChange>& changes) {
  for (std::uint32_t i = 0; i < history.spans.size(); ++i) {
    const HistorySpan& span = history.spans[i];
    if (span.to <= span.from) continue;
    changes.push_back({span.from, Kind::kSpanBegin, i});
    if (span.to != kNotYet) changes.push_back({span.to, Kind::kSpanEnd, i});
  }
}

}  // namespace

std::string RunName(const ExportedRun& run) {
  std::string device = fmt::format("cuda:{}", run.history->device);
  if (run.rank == nullptr || !run.rank->rank) return device;
  return fmt::format("rank {}, {}", *run.rank->rank, device);
}

std::string JsonText(std::string_view text) { return PrintableJson(WriteJson(text)); }

std::vector<HistoryChange> ChangesOf(const History& history) {
  std::vector<HistoryChange> changes;
  changes.reserve(2 * (history.blocks.size() + history.spans.size()) + history.reserved.size());
  AddBlockChanges(history, changes);
  AddSpanChanges(history, changes);
  for (std::uint32_t i = 0; i < history.reserved.size(); ++i) {
    changes.push_back({history.reserved[i].from, Kind::kReserved, i});
  }
  std::sort(changes.begin(), changes.end(), [](const HistoryChange& a, const HistoryChange& b) {
    return std::tie(a.at, a.kind, a.index) < std::tie(b.at, b.kind, b.index);
  });
  return changes;
}

void HeldMemory::Add(const HistoryBlock& block, Bytes sign) {
  allocated_ += sign * block.size;
  rounding_ += sign * (block.size - block.requested);
  by_category_[block.category] += sign * block.requested;
}

void HeldMemory::Apply(const HistoryChange& change) {
  switch (change.kind) {
    case Kind::kMake:
      Add(history_.blocks[change.index], 1);
      break;
    case Kind::kRelease: {
      const HistoryBlock& block = history_.blocks[change.index];
      Add(block, -1);
      if (block.freed > block.released) pending_ += block.size;
      break;
    }
    case Kind::kFree:
      pending_ -= history_.blocks[change.index].size;
      break;
    case Kind::kSpanBegin:
      in_spans_ += history_.spans[change.index].size;
      break;
    case Kind::kSpanEnd:
      in_spans_ -= history_.spans[change.index].size;
      break;
    case Kind::kReserved:
      stated_ = history_.reserved[change.index].reserved;
      break;
  }
}

Bytes HeldMemory::reserved() const {
  return history_.has_spans ? in_spans_ : std::max(stated_, allocated_ + pending_);
}

}  // namespace plimsoll

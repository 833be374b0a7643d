#include <fmt/format.h>

#include <iterator>

#include "base/printable.h"
#include "report/exports/export_run.h"
#include "report/exports/exports.h"

namespace plimsoll {
namespace {

using Kind = HistoryChange::Kind;

/// Names stand in many lines; they are quoted once.
std::vector<std::string> AllQuoted(const std::vector<std::string>& names) {
  std::vector<std::string> quoted;
  quoted.reserve(names.size());
  for (const std::string& name : names) quoted.push_back(name.empty() ? "" : CsvCell(name));
  return quoted;
}

/// "": no line. Another stream's use of a block, and figures that are stated, show in the totals of
/// the lines that follow.
std::string_view ActionName(Kind kind) {
  switch (kind) {
    case Kind::kMake:
      return "alloc";
    case Kind::kRelease:
      return "free";
    case Kind::kSpanBegin:
      return "segment_alloc";
    case Kind::kSpanEnd:
      return "segment_free";
    case Kind::kFree:
    case Kind::kReserved:
      return "";
  }
  return "";
}

class CsvWriter {
 public:
  explicit CsvWriter(const History& history)
      : history_(history),
        names_(AllQuoted(history.names)),
        categories_(AllQuoted(history.categories)) {}

  void Line(const HistoryChange& change, const HeldMemory& held) {
    const std::string_view action = ActionName(change.kind);
    if (action.empty()) return;
    out_ += fmt::format("{},{},{},", change.at, TimeOf(change.at), action);
    if (change.kind == Kind::kMake || change.kind == Kind::kRelease) {
      const HistoryBlock& block = history_.blocks[change.index];
      out_ += fmt::format("{},{},{:#x},{},{},{}", block.size, change.index, block.address,
                          categories_[block.category], names_[block.place], names_[block.module]);
    } else {
      const HistorySpan& span = history_.spans[change.index];
      out_ += fmt::format("{},,{:#x},,,", span.size, span.address);
    }
    out_ += fmt::format(",{},{}\n", held.allocated(), held.reserved());
  }
  std::string Take() { return std::move(out_); }

 private:
  /// Empty where the record has no time.
  std::string TimeOf(Position at) const {
    const auto index = static_cast<std::size_t>(at);
    if (at < 0 || index >= history_.times.size() || history_.times[index] == 0) return "";
    return std::to_string(history_.times[index]);
  }

  const History& history_;
  std::vector<std::string> names_;
  std::vector<std::string> categories_;
  std::string out_ =
      "event,time_us,action,bytes,block,address,category,place,module,allocated,reserved\n";
};

}  // namespace

std::string HistoryCsv(const ExportedRun& run) {
  CsvWriter writer(*run.history);
  HeldMemory held(*run.history);
  const std::vector<HistoryChange> changes = ChangesOf(*run.history);
  // The totals of a line are those after the whole event: one event can end one range and begin
  // another.
  for (auto first = changes.begin(); first != changes.end();) {
    auto last = first;
    for (; last != changes.end() && last->at == first->at; ++last) held.Apply(*last);
    for (; first != last; ++first) writer.Line(*first, held);
  }
  return writer.Take();
}

}  // namespace plimsoll

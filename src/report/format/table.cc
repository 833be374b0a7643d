#include "report/format/table.h"

#include <algorithm>
#include <utility>

namespace plimsoll {
namespace {

constexpr std::string_view kIndent = "  ";
constexpr std::string_view kGap = "  ";
/// Where a wrapped cell below its row begins.
constexpr std::string_view kBelow = "      ";
/// Fewer cells than this make a column of single words.
constexpr std::size_t kLeastWrapped = 24;

/// Where the cells of a table go.
struct TableLayout {
  std::vector<std::size_t> widths;
  std::vector<bool> shown;
  /// The last column is wrapped in `room` cells from `begin` on: beside the others, or below them.
  std::size_t begin = 0;
  std::size_t room = 0;
  bool below = false;
};

std::size_t LongestWord(std::string_view text) {
  std::size_t longest = 0;
  for (const std::string& word : WrapText(text, 1)) longest = std::max(longest, VisibleWidth(word));
  return longest;
}

/// Of all but the wrapping column.
std::size_t WidthOf(const TableLayout& layout, const std::vector<Column>& columns) {
  std::size_t width = kIndent.size();
  for (std::size_t c = 0; c < columns.size(); ++c) {
    if (layout.shown[c] && !columns[c].wraps) width += layout.widths[c] + kGap.size();
  }
  return width;
}

void LeaveOut(TableLayout& layout, const std::vector<Column>& columns, std::size_t width) {
  for (std::size_t c = columns.size(); c-- > 0;) {
    if (WidthOf(layout, columns) <= width + kGap.size()) return;
    if (columns[c].may_go) layout.shown[c] = false;
  }
}

std::string Trimmed(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

/// Writes the rows of one table.
class RowWriter {
 public:
  RowWriter(Writer& w, const std::vector<Column>& columns, const TableLayout& layout)
      : w_(w), columns_(columns), layout_(layout) {}

  void Write(const std::vector<std::string>& cells) {
    std::string line(kIndent);
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      if (!layout_.shown[c] || columns_[c].wraps) continue;
      const std::size_t width = layout_.widths[c];
      line += Painted(c, columns_[c].right ? PadLeft(cells[c], width) : PadRight(cells[c], width));
      line += kGap;
    }
    if (!columns_.back().wraps || cells.back().empty()) return w_.Line(Trimmed(line));
    const std::string indent(layout_.begin, ' ');
    if (layout_.below) w_.Line(Trimmed(std::exchange(line, indent)));
    for (const std::string& piece : WrapText(cells.back(), layout_.room)) {
      w_.Line(std::exchange(line, indent) + Painted(columns_.size() - 1, piece));
    }
  }

  void WriteUnder(const std::string& text) {
    for (const std::string& piece : WrapText(text, layout_.room)) {
      w_.Line(std::string(layout_.begin, ' ') + w_.Dim(piece));
    }
  }

 private:
  std::string Painted(std::size_t c, const std::string& text) const {
    return columns_[c].dim ? w_.Dim(text) : text;
  }

  Writer& w_;
  const std::vector<Column>& columns_;
  const TableLayout& layout_;
};

}  // namespace

std::vector<std::size_t> Table::Widths() const {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t width = VisibleWidth(columns_[c].heading);
    for (const Entry& row : rows_) {
      if (row.kind == Kind::kRow) width = std::max(width, VisibleWidth(row.cells[c]));
    }
    widths.push_back(width);
  }
  return widths;
}

std::vector<std::string> Table::WriteTo(Writer& w) const {
  const auto width = static_cast<std::size_t>(w.width());
  TableLayout layout{.widths = Widths(), .shown = std::vector<bool>(columns_.size(), true)};
  LeaveOut(layout, columns_, width);
  if (columns_.back().wraps) {
    std::size_t needed = std::min(layout.widths.back(), kLeastWrapped);
    for (const Entry& row : rows_) {
      if (row.kind != Kind::kRemark) needed = std::max(needed, LongestWord(row.cells.back()));
    }
    const std::size_t used = WidthOf(layout, columns_);
    layout.below = used + needed > width;
    layout.begin = layout.below ? kBelow.size() : used;
    layout.room = width - std::min(width, layout.begin);
  }
  std::vector<Column> plain = columns_;
  std::vector<std::string> headings;
  std::vector<std::string> left_out;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    plain[c].dim = true;
    headings.push_back(layout.below && columns_[c].wraps ? "" : columns_[c].heading);
    if (!layout.shown[c]) left_out.push_back(columns_[c].heading);
  }
  const bool named = std::ranges::any_of(headings, [](const auto& h) { return !h.empty(); });
  if (named) RowWriter(w, plain, layout).Write(headings);
  RowWriter writer(w, columns_, layout);
  for (const Entry& row : rows_) {
    if (row.kind == Kind::kRow) writer.Write(row.cells);
    if (row.kind == Kind::kUnder) writer.WriteUnder(row.cells.front());
    if (row.kind == Kind::kRemark) w.Line(std::string(kIndent) + w.Dim(row.cells.front()));
  }
  return left_out;
}

}  // namespace plimsoll

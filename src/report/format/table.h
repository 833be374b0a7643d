// Rows in columns, as wide as their cells, laid out to the terminal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/format/writer.h"

namespace plimsoll {

struct Column {
  std::string heading = {};
  bool right = false;
  /// Sentences or places: wrapped in the room that the others leave, or below them where that is
  /// too little. Only the last column may.
  bool wraps = false;
  bool dim = false;
  /// Left out where there is no room for it, the last one first.
  bool may_go = false;
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  void Row(std::vector<std::string> cells) { rows_.push_back({Kind::kRow, std::move(cells)}); }
  /// A line below the last row, dim, in its wrapping column.
  void Under(std::string text) { rows_.push_back({Kind::kUnder, {std::move(text)}}); }
  /// A line between the rows that is none itself.
  void Remark(std::string text) { rows_.push_back({Kind::kRemark, {std::move(text)}}); }
  /// Writes it and says which columns there was no room for.
  std::vector<std::string> WriteTo(Writer& w) const;

 private:
  enum class Kind : std::uint8_t { kRow, kUnder, kRemark };
  struct Entry {
    Kind kind;
    std::vector<std::string> cells;
  };

  std::vector<std::size_t> Widths() const;

  std::vector<Column> columns_;
  std::vector<Entry> rows_;
};

}  // namespace plimsoll

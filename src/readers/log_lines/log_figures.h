// Finds the memory that a log tells, in the same pass as its messages.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "readers/log_lines/log_tables.h"
#include "readers/log_lines/log_wordings.h"

namespace plimsoll {

/// A part of a log as LogFigures needs it.
struct FigurePart {
  std::string_view text;
  /// Where in the log it begins.
  std::size_t offset = 0;
  /// The number of the line at a place of the log; places only grow.
  std::function<std::size_t(std::size_t)> line_of;
};

class LogFigures {
 public:
  explicit LogFigures(std::string file) : table_(std::move(file)) {}

  /// For a PhraseFinder: of all rows, of the headings of tables, of the user's own lines.
  static std::vector<std::string_view> Phrases();

  /// One of them was found at [begin, end) of the part.
  void See(std::size_t phrase, const FigurePart& part, std::size_t begin, std::size_t end);
  /// Everything that begins in front of `end` of the part has been found.
  void EndPart(const FigurePart& part, std::size_t end);

  std::vector<LoggedSeries> Take() && { return std::move(sink_).Take(); }
  std::int64_t left_out() const { return sink_.left_out(); }

 private:
  bool EnterLine(const FigurePart& part, std::size_t begin, std::size_t end);
  /// `place`: what was found in it.
  void SetLine(const FigurePart& part, std::size_t begin, std::size_t end, std::size_t place);
  void LeaveLine();
  void ReadTable(const FigurePart& part, std::size_t end);

  FigureSink sink_;
  LogTable table_;
  /// How far the rows of a table have been read, in the log.
  std::size_t table_end_ = 0;
  // The line that was seen last.
  std::string text_;
  FigureLine line_;
  std::size_t number_ = 0;
  // In the log; nowhere where none is being read.
  std::size_t line_begin_ = std::string_view::npos;
  std::size_t line_end_ = 0;
  std::int64_t figures_before_ = 0;
  bool may_be_own_ = false;
  bool heading_tried_ = false;
  std::vector<LogWordingReader*> read_;
};

}  // namespace plimsoll

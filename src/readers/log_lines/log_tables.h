// Tables of which only the heading says what the columns are: exports of Weights & Biases,
// TensorBoard and Lightning as CSV, nvidia-smi's CSV and dmon, the rows of ultralytics' epochs.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "readers/log_lines/figure_line.h"
#include "readers/log_lines/figure_sink.h"

namespace plimsoll {

/// Words of the headings.
std::span<const std::string_view> TableHeadings();

class LogTable {
 public:
  /// `file`: its name tells the metric of an export of TensorBoard.
  explicit LogTable(std::string file) : file_(std::move(file)) {}

  /// Whether the line is the heading of a table that tells memory; its rows follow.
  bool Open(const FigureLine& line);
  bool open() const { return kind_ != Kind::kNone; }
  /// Reads a row, or sees that it is none. After many that are none the table is over.
  void Read(const FigureLine& line, std::size_t number, FigureSink& sink);
  std::string_view program() const { return program_; }

 private:
  enum class Kind : std::uint8_t { kNone, kCsv, kMonitor, kEpochs };
  struct TableColumn {
    std::size_t index = 0;
    std::string name;
    std::string phase;
    std::string run;
    FigureKind counts = FigureKind::kTensors;
    FigureSpan span = FigureSpan::kNow;
    double factor = 1;
    std::optional<int> device = {};
  };

  bool OpenCsv(const FigureLine& line);
  bool OpenMonitor(const FigureLine& line);
  bool OpenEpochs(const FigureLine& line);
  bool ReadCsv(const FigureLine& line, FigureSink& sink) const;
  bool ReadMonitor(const FigureLine& line, FigureSink& sink) const;
  bool ReadEpoch(const FigureLine& line, FigureSink& sink) const;
  std::optional<TableColumn> ColumnOf(std::string_view heading) const;

  std::string file_;
  Kind kind_ = Kind::kNone;
  std::string_view program_;
  std::vector<TableColumn> columns_;
  std::size_t width_ = 0;
  std::optional<std::size_t> step_;
  std::optional<std::size_t> index_;
  std::optional<std::size_t> process_;
  bool decimal_gigabytes_ = false;
  int strangers_ = 0;
};

}  // namespace plimsoll

// The memory that a log tells, in an answer: its series, the highest figure, what grows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "timeline/logged_series.h"

namespace plimsoll {

/// A rise that goes on from step to step.
struct LoggedGrowth {
  /// Index of LogReport::series.
  std::size_t series = 0;
  /// Bytes a step, or a line where the log has no steps.
  double rate = 0;
  bool by_step = true;
  LoggedPoint from = {};
  LoggedPoint to = {};
  /// How many figures the line goes through.
  std::int64_t points = 0;
  /// The step at which the card is full if it goes on so, where the card's memory is known; without
  /// steps, after how many more figures.
  std::optional<std::int64_t> full_at = {};
};

struct LogReport {
  std::vector<LoggedSeries> series;
  /// Of the steps that lines name.
  std::optional<std::int64_t> first_step = {};
  std::optional<std::int64_t> last_step = {};
  /// How many of them have a figure.
  std::int64_t steps = 0;
  /// Index of the series with the figure that matters most: what PyTorch reserved at most, else
  /// what comes nearest to that.
  std::optional<std::size_t> highest = {};
  /// Of the card on which that is.
  std::optional<Bytes> capacity = {};
  /// The capacity is computed from a percentage.
  bool capacity_inferred = false;
  /// What that card holds besides, where the log tells both what is used and what is reserved.
  std::optional<Bytes> outside = {};
  /// Of the capacity.
  std::optional<Bytes> left = {};
  /// The fastest first.
  std::vector<LoggedGrowth> growth = {};
  std::vector<std::string> notes = {};
};

/// "rank 3", "GPU 0", "WorkerDict pid=4711"; empty where the log does not tell.
std::string SourceText(const FigureSource& source);
/// "12.50 GiB", "4"; as what it counts is told.
std::string FigureText(const LoggedSeries& series, std::int64_t value);
/// "at step 40 (line 812)"; " in line 812" where there is no step.
std::string PointText(const LoggedPoint& point);

}  // namespace plimsoll

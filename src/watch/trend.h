// Where a figure is going: a line through its last samples, which a few odd ones do not bend.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "base/bytes.h"

namespace plimsoll {

enum class TrendKind : std::uint8_t {
  kUnknown,  // too few samples, or over too short a time
  kFlat,
  kRising,   // at about the same rate all the time
  kFalling,  // likewise
  kUneven,   // anything else
};

struct Trend {
  TrendKind kind = TrendKind::kUnknown;
  /// The line's slope; 0 unless it rises or falls.
  double bytes_per_second = 0;
  /// How long the samples reach back.
  double seconds = 0;
};

/// The samples of the last minute, or the last twelve where those reach further back.
class Series {
 public:
  /// `time` in seconds, later than the last one's.
  void Add(double time, Bytes bytes);
  Trend Fit() const;

 private:
  struct Point {
    double time;
    double bytes;
  };
  std::deque<Point> points_;
};

/// When that much will be used up, in seconds; nothing unless it rises steadily, or where that is
/// more than a day away.
std::optional<double> SecondsUntilFull(const Trend& trend, Bytes free);

}  // namespace plimsoll

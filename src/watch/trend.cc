#include "watch/trend.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/median.h"

namespace plimsoll {
namespace {

constexpr double kWindow = 60;
/// Less says nothing: a step of training takes seconds.
constexpr double kShortest = 10;
constexpr std::size_t kFewest = 8;
/// So many stay however long ago they were, for those who look seldom.
constexpr std::size_t kKept = 12;
/// With more, the pairs would take time that belongs to the job.
constexpr std::size_t kMost = 64;
/// A smaller change over the whole window is none.
constexpr double kLeastChange = 8 * kMiB;
constexpr std::size_t kParts = 4;
constexpr double kDay = 24 * 3600;

}  // namespace

void Series::Add(double time, Bytes bytes) {
  points_.push_back({time, static_cast<double>(bytes)});
  while (points_.size() > kKept && time - points_.front().time > kWindow) points_.pop_front();
}

namespace {

/// The median of the slopes of all pairs (Theil and Sen): up to a quarter of the samples may be
/// anything.
template <typename Points>
double MedianSlope(const Points& points) {
  std::vector<double> slopes;
  for (std::size_t i = 0; i < points.size(); ++i) {
    for (std::size_t j = i + 1; j < points.size(); ++j) {
      slopes.push_back((points[j].bytes - points[i].bytes) / (points[j].time - points[i].time));
    }
  }
  return LowerMedian(slopes);
}

/// Whether eight of ten samples are as good as the same.
template <typename Points>
bool IsFlat(const Points& points) {
  std::vector<double> values;
  for (const auto& point : points) values.push_back(point.bytes);
  const std::size_t odd = values.size() / 10;
  return Ranked(values, values.size() - 1 - odd) - Ranked(values, odd) < kLeastChange;
}

/// Whether each quarter of the time lies above the one before it, by between half and twice of what
/// the slope says.
template <typename Points>
bool IsSteady(const Points& points, double slope) {
  const double begin = points.front().time;
  const double length = (points.back().time - begin) / kParts;
  std::array<std::vector<double>, kParts> parts;
  for (const auto& point : points) {
    const auto part = static_cast<std::size_t>((point.time - begin) / length);
    parts[std::min(part, kParts - 1)].push_back(point.bytes);
  }
  for (std::size_t i = 1; i < kParts; ++i) {
    if (parts[i].empty() || parts[i - 1].empty()) return false;
    const double share = (LowerMedian(parts[i]) - LowerMedian(parts[i - 1])) / (slope * length);
    if (!(share >= 0.5 && share <= 2)) return false;
  }
  return true;
}

}  // namespace

Trend Series::Fit() const {
  if (points_.empty()) return {};
  Trend trend{.seconds = points_.back().time - points_.front().time};
  if (points_.size() < kFewest || trend.seconds < kShortest) return trend;
  // Every so manieth, and always the last.
  const std::size_t stride = (points_.size() + kMost - 1) / kMost;
  std::vector<Point> points;
  for (std::size_t i = (points_.size() - 1) % stride; i < points_.size(); i += stride) {
    points.push_back(points_[i]);
  }
  if (IsFlat(points)) {
    trend.kind = TrendKind::kFlat;
    return trend;
  }
  const double slope = MedianSlope(points);
  trend.kind = TrendKind::kUneven;
  if (std::abs(slope) * trend.seconds >= kLeastChange && IsSteady(points, slope)) {
    trend.kind = slope > 0 ? TrendKind::kRising : TrendKind::kFalling;
    trend.bytes_per_second = slope;
  }
  return trend;
}

std::optional<double> SecondsUntilFull(const Trend& trend, Bytes free) {
  if (trend.kind != TrendKind::kRising || free < 0) return std::nullopt;
  const double seconds = static_cast<double>(free) / trend.bytes_per_second;
  return seconds <= kDay ? std::optional(seconds) : std::nullopt;
}

}  // namespace plimsoll

#include "diagnose/logged/growth.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace plimsoll {
namespace {

constexpr std::size_t kLeastLoggedPoints = 8;
/// So few tell of a rise where each adds as much as the one before, as a leak in each step does.
constexpr std::size_t kLeastEvenPoints = 4;
/// How far a step of these may be off the middle of all, and the least share that they add.
constexpr double kMostUneven = 0.1;
constexpr double kLeastEvenShare = 0.1;
/// More than these are looked at by every so many.
constexpr std::size_t kMostFitted = 256;
/// A rise is told from so much on.
constexpr double kLeastLoggedRise = 64.0 * 1024 * 1024;
constexpr double kLeastShare = 0.02;
/// Of all pairs of points, those that rise less those that fall.
constexpr double kLeastConcordance = 0.7;
/// The second half of a line rises as the first does, or it is coming to an end.
constexpr double kLeastInSecondHalf = 0.5;
/// How far the points may lie beside the line, as a part of its rise.
constexpr double kMostBeside = 0.12;

struct PlottedPoint {
  double x = 0;
  double y = 0;
  std::size_t index = 0;
};

double MedianOf(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// The median of the slopes between all pairs (Theil and Sen): a few outliers do not matter.
double SlopeOf(std::span<const PlottedPoint> places) {
  std::vector<double> slopes;
  for (std::size_t i = 0; i < places.size(); ++i) {
    for (std::size_t j = i + 1; j < places.size(); ++j) {
      slopes.push_back((places[j].y - places[i].y) / (places[j].x - places[i].x));
    }
  }
  return MedianOf(std::move(slopes));
}

/// The sum of what lies beside the median of the first `cut` and beside a line of least squares
/// through the others.
double CostOf(std::span<const PlottedPoint> places, std::size_t cut) {
  double cost = 0;
  if (cut > 0) {
    std::vector<double> before;
    for (std::size_t i = 0; i < cut; ++i) before.push_back(places[i].y);
    const double level = MedianOf(std::move(before));
    for (std::size_t i = 0; i < cut; ++i) cost += std::abs(places[i].y - level);
  }
  const auto n = double(places.size() - cut);
  double x = 0;
  double y = 0;
  for (const PlottedPoint& place : places.subspan(cut)) {
    x += place.x / n;
    y += place.y / n;
  }
  double xx = 0;
  double xy = 0;
  for (const PlottedPoint& place : places.subspan(cut)) {
    xx += (place.x - x) * (place.x - x);
    xy += (place.x - x) * (place.y - y);
  }
  const double slope = xx > 0 ? xy / xx : 0;
  for (const PlottedPoint& place : places.subspan(cut)) {
    cost += std::abs(place.y - y - slope * (place.x - x));
  }
  return cost;
}

/// Where the line begins: in front of it all is even.
std::size_t BestCut(std::span<const PlottedPoint> places) {
  // A later beginning must be clearly better.
  constexpr double kClearly = 0.9;
  const std::size_t most = places.size() - kLeastLoggedPoints;
  const std::size_t stride = std::max<std::size_t>(1, most / 32);
  std::size_t best = 0;
  double least = CostOf(places, 0);
  for (std::size_t cut = stride; cut <= most; cut += stride) {
    const double cost = CostOf(places, cut);
    if (cost < kClearly * least) {
      least = cost;
      best = cut;
    }
  }
  const std::size_t from = best > stride ? best - stride : 0;
  const std::size_t to = std::min(most, best + stride);
  for (std::size_t cut = from; cut <= to; ++cut) {
    const double cost = CostOf(places, cut);
    if (cost < least) {
      least = cost;
      best = cut;
    }
  }
  return best;
}

double Concordance(std::span<const PlottedPoint> places) {
  std::int64_t sum = 0;
  std::int64_t pairs = 0;
  for (std::size_t i = 0; i < places.size(); ++i) {
    for (std::size_t j = i + 1; j < places.size(); ++j) {
      sum += places[j].y > places[i].y ? 1 : places[j].y < places[i].y ? -1 : 0;
      ++pairs;
    }
  }
  return double(sum) / double(std::max<std::int64_t>(1, pairs));
}

/// The points that count, at most so many; by step where steps only rise.
std::vector<PlottedPoint> PlacesOf(std::span<const LoggedPoint> points, bool& by_step) {
  by_step = true;
  for (std::size_t i = 0; i < points.size(); ++i) {
    by_step &= points[i].has_step() && (i == 0 || points[i].step > points[i - 1].step);
  }
  std::vector<PlottedPoint> places;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const bool early = by_step ? points[i].step < points.front().step + 2 : i < 2;
    if (early) continue;
    const double x = by_step ? double(points[i].step) : double(i);
    places.push_back({x, double(points[i].value), i});
  }
  if (places.size() <= kMostFitted) return places;
  std::vector<PlottedPoint> fewer;
  for (std::size_t i = 0; i < kMostFitted; ++i) {
    fewer.push_back(places[i * (places.size() - 1) / (kMostFitted - 1)]);
  }
  return fewer;
}

bool IsStraight(std::span<const PlottedPoint> line, double slope, double rise, double half_unit) {
  if (Concordance(line) < kLeastConcordance) return false;
  if (SlopeOf(line.subspan(line.size() / 2)) < kLeastInSecondHalf * slope) return false;
  std::vector<double> beside;
  for (const PlottedPoint& place : line) beside.push_back(place.y - slope * place.x);
  const double level = MedianOf(beside);
  for (double& value : beside) value = std::abs(value - level);
  return MedianOf(std::move(beside)) <= kMostBeside * rise + half_unit;
}

/// Of a job that dies within few steps.
std::optional<Rise> EvenRise(std::span<const PlottedPoint> places, bool by_step, double half_unit) {
  if (places.size() < kLeastEvenPoints) return {};
  const double rate = SlopeOf(places);
  const double total = places.back().y - places.front().y;
  if (total < std::max(kLeastLoggedRise, kLeastEvenShare * places.back().y)) return {};
  for (std::size_t i = 1; i < places.size(); ++i) {
    const double expected = rate * (places[i].x - places[i - 1].x);
    const double off = std::abs(places[i].y - places[i - 1].y - expected);
    if (off > kMostUneven * expected + 2 * half_unit) return {};
  }
  return Rise{.begin = places.front().index, .rate = rate, .by_step = by_step};
}

}  // namespace

std::optional<Rise> FindRise(std::span<const LoggedPoint> points, std::int64_t half_unit) {
  if (points.size() < kLeastEvenPoints) return {};
  Rise rise;
  const std::vector<PlottedPoint> places = PlacesOf(points, rise.by_step);
  if (places.size() < kLeastLoggedPoints) {
    return EvenRise(places, rise.by_step, double(half_unit));
  }
  const double least =
      std::max({kLeastLoggedRise, kLeastShare * std::abs(places.back().y), 4 * double(half_unit)});
  const auto [low, high] = std::ranges::minmax(places, {}, &PlottedPoint::y);
  if (high.y - low.y < least) return {};
  const std::size_t cut = BestCut(places);
  const std::span<const PlottedPoint> line = std::span(places).subspan(cut);
  rise.rate = SlopeOf(line);
  const double total = rise.rate * (line.back().x - line.front().x);
  if (total < least || !IsStraight(line, rise.rate, total, double(half_unit))) return {};
  rise.begin = line.front().index;
  // The last point in front of it, where it lies on the line too.
  if (cut > 0) {
    const PlottedPoint& before = places[cut - 1];
    const double off = line.front().y - rise.rate * (line.front().x - before.x) - before.y;
    const double near = std::max(double(half_unit), 0.25 * rise.rate * (line.front().x - before.x));
    if (std::abs(off) <= near) rise.begin = before.index;
  }
  return rise;
}

}  // namespace plimsoll

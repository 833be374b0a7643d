#include "diagnose/neighbours/presence.h"

#include <algorithm>

#include "base/median.h"

namespace plimsoll {
namespace {

/// So much longer than the usual distance of events a pause is: then somebody else may be at work.
constexpr TimeUs kTimesUsual = 16;
/// A record of a thousand ranks keeps its presence: it must stay small.
constexpr std::size_t kMostRanges = 256;

/// The times of the events that have one, in order.
std::vector<TimeUs> TimesOf(const Timeline& timeline) {
  std::vector<TimeUs> times;
  times.reserve(timeline.events.size());
  for (const Event& e : timeline.events) {
    if (e.time_us > 0) times.push_back(e.time_us);
  }
  std::sort(times.begin(), times.end());
  return times;
}

/// Half of the events follow the one before them sooner than this.
TimeUs UsualDistance(const std::vector<TimeUs>& times) {
  std::vector<TimeUs> distances;
  for (std::size_t i = 1; i < times.size(); ++i) distances.push_back(times[i] - times[i - 1]);
  return distances.empty() ? 0 : LowerMedian(distances);
}

/// The pauses that count, the longest ones where there are too many: each is the index of the event
/// after it.
std::vector<std::size_t> Pauses(const std::vector<TimeUs>& times, TimeUs least) {
  std::vector<std::size_t> pauses;
  for (std::size_t i = 1; i < times.size(); ++i) {
    if (times[i] - times[i - 1] > least) pauses.push_back(i);
  }
  if (pauses.size() < kMostRanges) return pauses;
  const auto length = [&](std::size_t i) { return times[i] - times[i - 1]; };
  std::ranges::stable_sort(pauses, std::ranges::greater(), length);
  pauses.resize(kMostRanges - 1);
  std::ranges::sort(pauses);
  return pauses;
}

TimeUs LengthOf(const std::vector<TimeRange>& ranges) {
  TimeUs sum = 0;
  // A single event takes time too.
  for (const TimeRange& r : ranges) sum += r.end - r.begin + 1;
  return sum;
}

}  // namespace

std::vector<TimeRange> BusyTimes(const Timeline& timeline, TimeUs least_idle) {
  const std::vector<TimeUs> times = TimesOf(timeline);
  if (times.empty()) return {};
  std::vector<TimeRange> busy = {{times.front(), times.back()}};
  const TimeUs least = std::max(least_idle, kTimesUsual * UsualDistance(times));
  for (const std::size_t after : Pauses(times, least)) {
    busy.back().end = times[after - 1];
    busy.push_back({times[after], times.back()});
  }
  return busy;
}

std::optional<Presence> PresenceOf(const Timeline& timeline) {
  const std::vector<TimeUs> times = TimesOf(timeline);
  if (times.empty()) return std::nullopt;
  const TimeRange record{times.front(), times.back()};
  return Presence{.record = record, .busy = BusyTimes(timeline, LeastPause(record))};
}

double ShareAtOnce(const std::vector<TimeRange>& a, const std::vector<TimeRange>& b) {
  TimeUs both = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const TimeUs begin = std::max(a[i].begin, b[j].begin);
    const TimeUs end = std::min(a[i].end, b[j].end);
    if (begin <= end) both += end - begin + 1;
    (a[i].end < b[j].end ? i : j) += 1;
  }
  const TimeUs least = std::min(LengthOf(a), LengthOf(b));
  return least == 0 ? 0 : double(both) / double(least);
}

}  // namespace plimsoll

// When a process was at work: what tells processes that take turns from ranks, which work together.
#pragma once

#include <optional>
#include <vector>

#include "answer/card.h"

namespace plimsoll {

/// A pause that is shorter than this part of all that was recorded is none.
inline TimeUs LeastPause(const TimeRange& recorded) {
  return (recorded.end - recorded.begin) / 2000;
}

/// Where the events are closer together than a long pause: one of `least_idle` that is also many
/// times as long as the usual distance of two events.
std::vector<TimeRange> BusyTimes(const Timeline& timeline, TimeUs least_idle);

/// Nothing where the record has no clock.
std::optional<Presence> PresenceOf(const Timeline& timeline);

/// How long both are busy, as a share of the one that is busy for less time.
double ShareAtOnce(const std::vector<TimeRange>& a, const std::vector<TimeRange>& b);

/// Whether two processes work at the same time, as ranks do.
inline bool WorkAtOnce(const std::vector<TimeRange>& a, const std::vector<TimeRange>& b) {
  return ShareAtOnce(a, b) > 0.5;
}

}  // namespace plimsoll

// Whether a series of figures rises from step to step.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "timeline/logged_series.h"

namespace plimsoll {

/// The part of a series that rises on a line up to its end.
struct Rise {
  /// Index of the first point on the line.
  std::size_t begin = 0;
  /// A step, or a point where `by_step` is false.
  double rate = 0;
  bool by_step = true;
};

/// Nothing where it does not rise to its end: where it varies, rose once, or rose until it was
/// even. The first two steps never count: optimizer and libraries take what they keep. Of few
/// points only where each adds as much as the one before.
std::optional<Rise> FindRise(std::span<const LoggedPoint> points, std::int64_t half_unit);

}  // namespace plimsoll

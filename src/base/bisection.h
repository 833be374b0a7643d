// Which of many things in a row is the first that is different, by few tries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace plimsoll {

/// What a try says of one of them.
enum class Side : std::uint8_t {
  kBefore,
  kAfter,
  kUnknown,  // it cannot be tried
  kStop,     // nothing more is to be tried
};

/// Where the change is: after the one and not after the other. What lies between them cannot be
/// tried, or was not, since the search was stopped.
struct Bisection {
  std::size_t last_before = 0;
  std::size_t first_after = 0;
  bool stopped = false;
};

/// Between number 0, which is before the change, and `last`, which is after it. Each number is
/// tried once at most. Where one cannot be tried, the next try is far from it: what breaks one
/// commit breaks its neighbours.
Bisection FindChange(std::size_t last, const std::function<Side(std::size_t)>& side_of);

}  // namespace plimsoll

#include "base/bisection.h"

#include <algorithm>
#include <vector>

namespace plimsoll {
namespace {

/// 1/2, 1/4, 3/4, 1/8, 5/8, ...: parts of a whole, each far from those before it.
double SpreadPart(std::size_t number) {
  double part = 0;
  double digit = 0.5;
  for (std::size_t rest = number; rest > 0; rest /= 2, digit /= 2) {
    part += static_cast<double>(rest % 2) * digit;
  }
  return part;
}

}  // namespace

Bisection FindChange(std::size_t last, const std::function<Side(std::size_t)>& side_of) {
  Bisection found{.last_before = 0, .first_after = last};
  std::vector<bool> unknown(last + 1, false);
  for (;;) {
    std::vector<std::size_t> untried;
    std::size_t refused = 0;
    for (std::size_t i = found.last_before + 1; i < found.first_after; ++i) {
      if (unknown[i]) {
        ++refused;
      } else {
        untried.push_back(i);
      }
    }
    if (untried.empty()) return found;
    const auto at =
        static_cast<std::size_t>(SpreadPart(refused + 1) * static_cast<double>(untried.size()));
    const std::size_t next = untried[std::min(at, untried.size() - 1)];
    switch (side_of(next)) {
      case Side::kBefore:
        found.last_before = next;
        break;
      case Side::kAfter:
        found.first_after = next;
        break;
      case Side::kUnknown:
        unknown[next] = true;
        break;
      case Side::kStop:
        found.stopped = true;
        return found;
    }
  }
}

}  // namespace plimsoll

// The middle of some values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace plimsoll {

/// The value below which lie `rank` others; a default value for none.
template <typename T>
T Ranked(std::vector<T> values, std::size_t rank) {
  if (values.empty()) return T{};
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(rank),
                   values.end());
  return values[rank];
}

/// Of an even number of values, the lower or the upper of the two in the middle.
template <typename T>
T LowerMedian(std::vector<T> values) {
  const std::size_t middle = values.empty() ? 0 : (values.size() - 1) / 2;
  return Ranked(std::move(values), middle);
}
template <typename T>
T UpperMedian(std::vector<T> values) {
  const std::size_t middle = values.size() / 2;
  return Ranked(std::move(values), middle);
}

}  // namespace plimsoll

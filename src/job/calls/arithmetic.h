// Small sums that many kernels do when they choose their blocks.
#pragma once

#include <cstdint>

namespace plimsoll {

/// a / b rounded up; both at least 0, and nothing is divided by 0.
constexpr std::int64_t CeilDiv(std::int64_t a, std::int64_t b) {
  return b > 0 ? a / b + (a % b > 0 ? 1 : 0) : 0;
}
/// A product that stays below what any device holds: sizes in a file may contradict one another.
template <typename... Rest>
constexpr std::int64_t Product(std::int64_t a, Rest... rest) {
  constexpr std::int64_t kMost = std::int64_t{1} << 58;
  if constexpr (sizeof...(rest) == 0) {
    return a < kMost ? a : kMost;
  } else {
    const std::int64_t b = Product(rest...);
    std::int64_t product = 0;
    return __builtin_mul_overflow(a, b, &product) || product > kMost ? kMost : product;
  }
}
constexpr std::int64_t RoundUp(std::int64_t a, std::int64_t to) { return CeilDiv(a, to) * to; }
/// The largest power of two that is not above n; 1 for n < 1.
constexpr std::int64_t FloorPow2(std::int64_t n) {
  std::int64_t p = 1;
  while (p <= n / 2) p *= 2;
  return p;
}
/// How many bits it takes to write n.
constexpr int BitLength(std::int64_t n) {
  int bits = 0;
  for (; n > 0; n >>= 1) ++bits;
  return bits;
}

}  // namespace plimsoll

// Random numbers that are the same on every machine and with every standard library, and cheap to
// begin anew for each sample.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace plimsoll::train {

/// SplitMix64 (Steele, Lea, Flood 2014).
class Random {
 public:
  /// Different for each pair, also for neighbours.
  Random(std::uint64_t seed, std::uint64_t stream) : state_(seed) { state_ = Next() ^ stream; }

  std::uint64_t Next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  /// In [0, n). The bias is n / 2^64.
  std::int64_t Below(std::int64_t n) {
    return static_cast<std::int64_t>(Next() % static_cast<std::uint64_t>(n));
  }

  /// In [0, 1).
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

  /// In [-1, 1).
  float Signed() { return static_cast<float>(Next() >> 40) * 0x1p-23F - 1; }

 private:
  std::uint64_t state_;
};

/// Fisher and Yates's; std::shuffle differs between standard libraries.
template <class T>
void Shuffle(std::vector<T>& order, Random& random) {
  for (std::size_t left = order.size(); left > 1; --left) {
    const auto pick = static_cast<std::size_t>(random.Below(static_cast<std::int64_t>(left)));
    std::swap(order[left - 1], order[pick]);
  }
}

}  // namespace plimsoll::train

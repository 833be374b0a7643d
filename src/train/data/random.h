// Random numbers that are the same on every machine and with every standard library, and cheap to
// begin anew for each sample.
#pragma once

#include <cstdint>

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

}  // namespace plimsoll::train

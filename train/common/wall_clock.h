// For how long things took.
#pragma once

#include <chrono>

namespace plimsoll::train {

inline double Seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace plimsoll::train

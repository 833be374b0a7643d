// Waiting in tests, by what happens and not by the clock: a busy machine takes its time.
#pragma once

#include <chrono>
#include <thread>

namespace plimsoll::train {

/// Returns true as soon as it holds; false only after minutes, when it will never.
template <class Condition>
bool WaitUntil(Condition holds) {
  const auto hangs = std::chrono::steady_clock::now() + std::chrono::minutes(10);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > hangs) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace plimsoll::train

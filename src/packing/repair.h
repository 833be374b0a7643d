// Improves an order for first fit: what came to lie too high is placed earlier next time.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "packing/first_fit.h"
#include "packing/instance.h"

namespace plimsoll {

class Repair {
 public:
  Repair(const Instance& instance, FirstFit& first_fit, std::vector<std::uint32_t> order);

  /// Places all items once, the troublesome ones earlier than before, and returns the height;
  /// nothing where the limit of the first fit came first.
  std::optional<Bytes> Step(Bytes goal);

  /// Of the last step: where the items lie, and which reach over the goal.
  const std::vector<Bytes>& offsets() const { return offsets_; }
  const std::vector<std::uint32_t>& too_high() const { return too_high_; }

 private:
  void MoveForward();

  const Instance& instance_;
  FirstFit& first_fit_;
  std::vector<std::uint32_t> order_;
  std::vector<std::uint32_t> best_order_;
  std::vector<Bytes> offsets_;
  std::vector<std::uint32_t> too_high_;
  Bytes best_height_;
  std::uint32_t steps_since_best_ = 0;
  std::mt19937_64 random_;
};

}  // namespace plimsoll

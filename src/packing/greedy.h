// The simple way: place the buffers in a fixed order, each where it fits. Eight variants are tried
// and the best is kept, as a first upper bound and as what the search is measured against.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "packing/first_fit.h"
#include "packing/instance.h"
#include "packing/problem.h"

namespace plimsoll {

enum class Order {
  kLargestFirst,
  kLargestAreaFirst,
  kLongestFirst,
  /// Those alive when most bytes are first, the longest of them first.
  kBusiestFirst,
};
inline constexpr std::array<Order, 4> kOrders = {Order::kLargestFirst, Order::kLargestAreaFirst,
                                                 Order::kLongestFirst, Order::kBusiestFirst};

/// The items in the given order, ties as in the instance.
std::vector<std::uint32_t> InOrder(const Instance& instance, Order order);

/// The best of four orders, each with two ways of choosing the gap.
Packing PackGreedily(const Problem& problem);

}  // namespace plimsoll

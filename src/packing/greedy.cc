#include "packing/greedy.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace plimsoll {
namespace {

/// The largest load among the sections of each item.
std::vector<Bytes> BusiestLoads(const Instance& instance) {
  // rows[k][s] is the largest load of the 2^k sections from s on.
  std::vector<std::vector<Bytes>> rows = {instance.load};
  for (std::size_t width = 1; width * 2 <= instance.load.size(); width *= 2) {
    const std::vector<Bytes>& previous = rows.back();
    std::vector<Bytes> row(instance.load.size() - 2 * width + 1);
    for (std::size_t s = 0; s < row.size(); ++s) {
      row[s] = std::max(previous[s], previous[s + width]);
    }
    rows.push_back(std::move(row));
  }
  std::vector<Bytes> busiest;
  busiest.reserve(instance.items.size());
  for (const Item& item : instance.items) {
    std::size_t k = 0;
    while ((std::size_t{2} << k) <= item.last - item.first + 1) ++k;
    busiest.push_back(
        std::max(rows[k][item.first], rows[k][item.last + 1 - (std::size_t{1} << k)]));
  }
  return busiest;
}

}  // namespace

std::vector<std::uint32_t> InOrder(const Instance& instance, Order order) {
  std::vector<std::uint32_t> items(instance.items.size());
  std::iota(items.begin(), items.end(), 0u);
  const auto length = [&](std::uint32_t i) {
    return double(instance.items[i].last - instance.items[i].first + 1);
  };
  std::vector<double> key(items.size());
  std::vector<Bytes> busiest;
  if (order == Order::kBusiestFirst) busiest = BusiestLoads(instance);
  for (const std::uint32_t i : items) {
    const double size = double(instance.items[i].size);
    if (order == Order::kLargestFirst) key[i] = size;
    if (order == Order::kLargestAreaFirst) key[i] = size * length(i);
    if (order == Order::kLongestFirst || order == Order::kBusiestFirst) key[i] = length(i);
  }
  std::stable_sort(items.begin(), items.end(), [&](std::uint32_t a, std::uint32_t b) {
    if (!busiest.empty() && busiest[a] != busiest[b]) return busiest[a] > busiest[b];
    return key[a] > key[b];
  });
  return items;
}

Packing PackGreedily(const Problem& problem) {
  const Instance instance = Reduce(problem);
  FirstFit first_fit(instance);
  Bytes least = std::numeric_limits<Bytes>::max();
  std::vector<Bytes> best;
  for (const Order order : kOrders) {
    const std::vector<std::uint32_t> items = InOrder(instance, order);
    for (const Fit fit : {Fit::kLowest, Fit::kTightest}) {
      const std::optional<Bytes> height = first_fit.PlaceAll(items, fit);
      if (!height || *height >= least) continue;
      least = *height;
      best = first_fit.offsets();
    }
  }
  return Expand(problem, instance, best);
}

}  // namespace plimsoll

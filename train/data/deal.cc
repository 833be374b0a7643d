#include "train/data/deal.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <utility>

namespace plimsoll::train {
namespace {

using Cost = std::function<std::int64_t(std::int64_t)>;

std::int64_t Sum(const std::vector<std::int64_t>& samples, const Cost& cost) {
  std::int64_t sum = 0;
  for (const std::int64_t sample : samples) sum += cost(sample);
  return sum;
}

/// Exchanges one sample of the fullest rank for one of the emptiest, while that helps.
void Even(RankBatches& step, const Cost& cost) {
  const auto by_cost = [&](const auto& a, const auto& b) { return Sum(a, cost) < Sum(b, cost); };
  for (std::size_t i = 0; i < 4 * step.size(); ++i) {
    const auto [empty, full] = std::minmax_element(step.begin(), step.end(), by_cost);
    const std::int64_t gap = Sum(*full, cost) - Sum(*empty, cost);
    std::int64_t best = gap;
    std::pair<std::int64_t*, std::int64_t*> exchange;
    for (std::int64_t& more : *full) {
      for (std::int64_t& less : *empty) {
        const std::int64_t left = std::abs(gap - 2 * (cost(more) - cost(less)));
        if (left < best) best = left, exchange = {&more, &less};
      }
    }
    if (best == gap) return;
    std::swap(*exchange.first, *exchange.second);
  }
}

}  // namespace

/// The most costly first, in rounds: in each, every rank gets one, and whoever has the least so far
/// gets the most costly.
RankBatches Deal(std::vector<std::int64_t> samples, const Cost& cost, const DealOptions& options) {
  std::stable_sort(samples.begin(), samples.end(),
                   [&](auto a, auto b) { return cost(a) > cost(b); });
  const auto ranks = static_cast<std::size_t>(options.ranks);
  RankBatches step(ranks);
  std::vector<std::int64_t> sums(ranks);
  std::vector<std::size_t> turn(ranks);
  std::iota(turn.begin(), turn.end(), 0);
  std::rotate(turn.begin(), turn.begin() + options.first % options.ranks, turn.end());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (i % ranks == 0) {
      std::stable_sort(turn.begin(), turn.end(), [&](auto a, auto b) { return sums[a] < sums[b]; });
    }
    const std::size_t rank = turn[i % ranks];
    step[rank].push_back(samples[i]);
    sums[rank] += cost(samples[i]);
  }
  if (!options.padded) Even(step, cost);
  return step;
}

}  // namespace plimsoll::train

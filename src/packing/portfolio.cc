#include "packing/portfolio.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/parallel.h"

namespace plimsoll {
namespace {

/// The first alone solves most instances; the last seldom helps, but then a lot.
constexpr std::array<Preference, 7> kPreferences = {
    Preference::kLongest,     Preference::kLargestArea, Preference::kLargest, Preference::kLongest,
    Preference::kLargestArea, Preference::kLargest,     Preference::kSmallest};

/// Limits grow slowly: a run that goes wrong early is hopeless, and many short ones find more than
/// a few long ones. That they grow without end makes the whole exact.
Attempt MakeAttempt(std::uint64_t number, std::size_t items) {
  const double growth = std::pow(1.05, double(std::min<std::uint64_t>(number, 500)));
  return {.preference = kPreferences[number % kPreferences.size()],
          .noise = number < 3 ? 0.0 : 0.4,
          .seed = number,
          .most_nodes = static_cast<std::uint64_t>(double(1500 + 6 * items) * growth)};
}

}  // namespace

SearchResult RunPortfolio(const std::vector<Item>& items, std::uint32_t sections, Bytes capacity,
                          const Effort& effort) {
  const unsigned threads = std::max(1u, effort.threads);
  const std::uint64_t most_nodes = std::max<std::uint64_t>(1, effort.most_nodes / threads);
  std::vector<SearchResult> results(threads);
  std::atomic<std::uint64_t> first_success = ~std::uint64_t{0};
  const auto work = [&](std::size_t worker) {
    SearchResult& result = results[worker];
    Search search(items, sections, capacity);
    StopSign stop{.deadline = effort.deadline, .first_success = &first_success};
    stop.number = effort.first_attempt + worker;
    stop.most_work = std::max<std::uint64_t>(1, effort.most_work / threads);
    for (; stop.number < effort.end_attempt; stop.number += threads) {
      Attempt attempt = MakeAttempt(stop.number, items.size());
      attempt.most_nodes = std::min(attempt.most_nodes, most_nodes - search.nodes());
      result.outcome = search.Run(attempt, stop);
      if (result.outcome != SearchOutcome::kGaveUp) {
        result.offsets = search.offsets();
        std::uint64_t before = first_success;
        while (stop.number < before && !first_success.compare_exchange_weak(before, stop.number)) {
        }
        if (before < stop.number) result.outcome = SearchOutcome::kGaveUp;  // another one counts
        break;
      }
      if (stop.Reached() || search.nodes() >= most_nodes || search.work() >= stop.most_work) break;
    }
    result.nodes = search.nodes();
    result.work = search.work();
  };
  ParallelFor(threads, work, threads);
  SearchResult answer;
  for (SearchResult& result : results) {
    answer.nodes += result.nodes;
    answer.work += result.work;
  }
  if (first_success == ~std::uint64_t{0}) return answer;
  SearchResult& first = results[(first_success - effort.first_attempt) % threads];
  answer.outcome = first.outcome;
  answer.offsets = std::move(first.offsets);
  return answer;
}

}  // namespace plimsoll

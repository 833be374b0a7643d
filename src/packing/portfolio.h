// Runs the search again and again, in different ways and with growing limits, on several threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "packing/search.h"

namespace plimsoll {

struct Effort {
  std::chrono::steady_clock::time_point deadline;
  unsigned threads = 1;
  /// The numbers of the attempts to make; later ones have higher limits.
  std::uint64_t first_attempt = 0;
  std::uint64_t end_attempt = ~std::uint64_t{0};
  /// States to visit in all. Unlike the deadline it ends the search at the same point each time.
  std::uint64_t most_nodes = ~std::uint64_t{0};
  /// Likewise: items and sections that are looked at in these states.
  std::uint64_t most_work = ~std::uint64_t{0};
};

struct SearchResult {
  SearchOutcome outcome = SearchOutcome::kGaveUp;
  /// Of each item, where one was found.
  std::vector<Bytes> offsets;
  std::uint64_t nodes = 0;
  std::uint64_t work = 0;
};

/// Do the items fit below the capacity? With the same threads and enough time, the answer is the
/// same each time.
SearchResult RunPortfolio(const std::vector<Item>& items, std::uint32_t sections, Bytes capacity,
                          const Effort& effort);

}  // namespace plimsoll

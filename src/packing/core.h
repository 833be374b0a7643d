// Large instances: search only where it is tight.
//
// Most sections of a real trace are nowhere near the capacity. The search gets the busiest sections
// and the items alive in them, the rest is placed around its answer by first fit. Where that does
// not fit, the sections in question join the core, and so on.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "packing/first_fit.h"
#include "packing/instance.h"
#include "packing/portfolio.h"

namespace plimsoll {

/// Items of the core that are alive in the same of its sections.
enum class SameSections {
  kApart,
  /// Are treated as one: fewer items, but some solutions are lost.
  kMerged,
};

class Core {
 public:
  Core(const Instance& instance, FirstFit& first_fit);

  /// Looks for offsets below the capacity. kImpossible is a proof, as already the core does not
  /// fit; but not for kMerged.
  SearchResult Solve(Bytes capacity, SameSections same, Effort effort);

  /// The least height that came up on the way, and its offsets.
  Bytes best_height() const { return best_height_; }
  const std::vector<Bytes>& best_offsets() const { return best_offsets_; }

 private:
  void ChooseBusiest(Bytes capacity);
  void CollectItems();
  void MergeItems();
  bool PlaceAround(Bytes capacity, const std::vector<Bytes>& core_offsets,
                   std::chrono::steady_clock::time_point deadline);
  bool Grow();

  const Instance& instance_;
  FirstFit& first_fit_;
  /// Per section, whether it belongs to the core.
  std::vector<char> in_core_;
  std::vector<Item> items_;
  /// The items of the instance that each item of the core stands for.
  std::vector<std::vector<std::uint32_t>> members_;
  std::uint32_t sections_ = 0;
  /// Items that the last placement left above the capacity.
  std::vector<std::uint32_t> too_high_;
  Bytes best_height_;
  std::vector<Bytes> best_offsets_;
};

}  // namespace plimsoll

// A problem as the solvers want it: time reduced to the sections that matter, what is alive
// throughout taken out.
#pragma once

#include <cstdint>
#include <vector>

#include "packing/problem.h"

namespace plimsoll {

/// A buffer over a run of sections.
struct Item {
  std::uint32_t first = 0;
  /// Inclusive.
  std::uint32_t last = 0;
  Bytes size = 0;
  Bytes alignment = 1;
};

/// Sections are the instants at which the set of living buffers is not part of that of a
/// neighbouring instant. Two buffers are alive together at some time exactly if they share a
/// section, and there are never more sections than buffers.
struct Instance {
  std::vector<Item> items;
  std::uint32_t sections = 0;
  /// The bytes alive in each section.
  std::vector<Bytes> load;
  /// The buffer of each item.
  std::vector<std::uint32_t> buffer;
  /// Buffers that are alive in every section: they lie at the bottom, below all items.
  std::vector<std::uint32_t> bottom;
  Bytes bottom_size = 0;
};

/// The items are sorted by their first section, then by their last.
Instance Reduce(const Problem& problem);

/// The packing of the problem that offsets of the items amount to.
Packing Expand(const Problem& problem, const Instance& instance,
               const std::vector<Bytes>& item_offsets);

}  // namespace plimsoll

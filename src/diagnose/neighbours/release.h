// What a process would hold if it gave back more: its own requests, put to the allocator's model.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "diagnose/attribution/analysed_trace.h"

namespace plimsoll {

/// What is done at a position, besides emptying the cache.
struct FreedThen {
  /// Let go of; indices into Ledger::allocations.
  std::vector<AllocationIndex> allocations = {};
  /// With expandable segments from the beginning.
  bool expandable = false;
};

/// What it holds from the driver then. Nothing where the model does not decide as the record did.
std::optional<Bytes> HeldAfter(const AnalysedTrace& trace, Position at, const FreedThen& release);

/// The most that it holds up to a position if these allocations are never made.
std::optional<Bytes> PeakWithout(const AnalysedTrace& trace, Position until,
                                 const std::vector<AllocationIndex>& left_out);

/// The tensors of one line that are alive at a position, which hold most: a pool, as a rule.
struct LargestLine {
  std::string where;
  /// `where` is a line, and not the lack of a stack.
  bool has_line = false;
  Bytes bytes = 0;
  std::vector<AllocationIndex> allocations = {};
};
LargestLine LargestLineAt(const AnalysedTrace& trace, Position at);

}  // namespace plimsoll

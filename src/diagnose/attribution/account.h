// Where every byte is at one instant. The lines add up to what the allocator holds from the driver,
// always: what no rule explains has a line of its own.
#pragma once

#include <vector>

#include "answer/explanation.h"
#include "diagnose/attribution/attribution.h"
#include "diagnose/phases/phases.h"

namespace plimsoll {

struct Account {
  Bytes allocated = 0;
  Bytes reserved = 0;
  /// Free inside segments in use, and whole free segments.
  Bytes fragmented = 0;
  Bytes cached = 0;
  Bytes pending = 0;
  /// The largest free piece, which is what a request can be served from.
  Bytes largest_free = 0;
  std::array<Bytes, kCategoryCount> by_category{};
  std::vector<AccountLine> lines;
};

Account AccountAt(const Phases& phases, const Attribution& attribution, Position at);

}  // namespace plimsoll

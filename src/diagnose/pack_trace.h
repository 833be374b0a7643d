// A trace as a packing problem: its allocations as buffers, with lifetimes in events.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "allocator/record/ledger.h"
#include "packing/problem.h"
#include "packing/solve.h"
#include "timeline/timeline.h"

namespace plimsoll {

/// One buffer for each allocation, in the order of the ledger, rounded up to 512 bytes as every
/// block is; then the request that ended the run, if one did. A free that waits for another stream
/// ends its buffer only when it completes.
Problem PackingProblem(const Timeline& timeline, const Ledger& ledger);

/// What `plimsoll pack` tells.
struct PackReport {
  std::string file;
  /// The name of each buffer: as in the CSV, or the number of the allocation.
  std::vector<std::string> ids;
  Problem problem;
  std::optional<Bytes> capacity = {};
  Bytes most_alive = 0;
  PackResult result;
  /// What the independent check found wrong; nothing is the rule.
  std::optional<std::string> fault = {};
  std::vector<std::string> notes = {};
};

}  // namespace plimsoll

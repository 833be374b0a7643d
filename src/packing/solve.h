// Packs a problem: as well as the time allows, and says what is proven.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "base/result.h"
#include "packing/problem.h"

namespace plimsoll {

struct PackOptions {
  /// Where given, it is enough to fit into this; else the least height is looked for.
  std::optional<Bytes> capacity = {};
  double seconds = 10;
  /// States that the search may visit. With one thread and time enough the answer is then the same
  /// on every machine.
  std::uint64_t most_nodes = std::uint64_t{1} << 60;
  /// Looks at items, sections and intervals; likewise.
  std::uint64_t most_work = std::uint64_t{1} << 60;
  /// 0: one for each core.
  unsigned threads = 1;
  /// Called with each better height and the height that is proven to be needed.
  std::function<void(Bytes height, Bytes lower_bound)> on_better = {};
};

enum class Fits { kYes, kNot, kUnknown };

struct PackResult {
  /// Always valid, whatever else is said.
  Packing packing;
  /// No packing is lower: the most bytes alive at once, or more where the search proved more.
  Bytes lower_bound = 0;
  /// The packing has the least height possible.
  bool optimal = false;
  /// Whether the capacity is enough; kUnknown if the time ran out, kYes without a capacity.
  Fits fits = Fits::kYes;
  /// States that the search visited; 0 if it was not needed.
  std::uint64_t nodes = 0;
  /// The time or the work came to its end before the search did.
  bool cut_short = false;
  double seconds = 0;
};

/// An error if the problem makes no sense (CheckProblem).
Result<PackResult> Pack(const Problem& problem, const PackOptions& options = {});

}  // namespace plimsoll

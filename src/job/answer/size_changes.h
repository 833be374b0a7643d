// What would make batches of changing sizes leave less behind: the allocator caches blocks of the
// sizes of one step that do not suit the next.
#pragma once

#include <cstdint>
#include <vector>

#include "job/trial/trial.h"

namespace plimsoll {

struct SizeChange {
  enum class Kind : std::uint8_t {
    kExpandable,     ///< expandable_segments:True
    kMultiples,      ///< sizes padded to a multiple of `multiple`
    kLargest,        ///< every batch padded to the largest sizes
    kHeaviestFirst,  ///< the heaviest of these batches first
  };
  Kind kind = Kind::kExpandable;
  std::int64_t multiple = 0;
  TrialResult trial;
};

/// Each computed by running the same steps through the allocator. Empty for a job whose batches
/// have one size.
std::vector<SizeChange> FindSizeChanges(const Trial& trial);

}  // namespace plimsoll

// Context parallelism: each rank has its positions of every sequence, as torch's context_parallel
// divides them; attention goes around the ranks.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "job/file/job.h"

namespace plimsoll {

struct ContextParallel {
  /// At least 2.
  std::int64_t ranks = 2;
  /// set_rotate_method("alltoall"): keys and values are handed on from rank to rank; else all are
  /// gathered.
  bool ring = false;
};

/// The variant as one of the ranks runs it, `apart` from the next in the order of all. Adds to the
/// job's strings and layouts.
Result<Variant> AddContextParallel(Job& job, const Variant& variant, const ContextParallel& context,
                                   std::int64_t positions, std::int64_t apart);

}  // namespace plimsoll

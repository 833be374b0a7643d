// FSDP2 around the captured model: fully_shard on each block and then on the whole.
#pragma once

#include "job/file/job.h"
#include "job/parallel/sharding.h"

namespace plimsoll {

/// The variant as the first of the ranks runs it. Adds to the step's strings and layouts. Under a
/// policy the variant computes in its type (CannotShard).
Variant AddFullySharded(Job& job, const Variant& variant, const Sharding& sharding);

}  // namespace plimsoll

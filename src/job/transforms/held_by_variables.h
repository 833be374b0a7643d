// Until when variables of the user's code hold what a forward makes. The backward holds it for
// longer, so this counts only in a job that computes it again or has it wait on the host.
#pragma once

#include <cstddef>
#include <vector>

#include "job/file/job.h"

namespace plimsoll {

/// By storage: the last event before which a variable still holds it; 0 where none does for longer
/// than the forward reads it.
std::vector<std::size_t> HeldByVariables(const Variant& variant);

}  // namespace plimsoll

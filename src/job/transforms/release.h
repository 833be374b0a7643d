// A captured job in which memory is let go earlier, as the capture tried it.
#pragma once

#include <vector>

#include "job/file/job.h"

namespace plimsoll {

/// With all of these, which belong to the variant.
Variant FreeEarlier(const Variant& variant, const std::vector<const Release*>& releases);

}  // namespace plimsoll

// A captured job in which memory is let go earlier, as the capture tried it.
#pragma once

#include <vector>

#include "job/file/job.h"

namespace plimsoll {

/// With all of these, which belong to the variant.
Variant FreeEarlier(const Variant& variant, const std::vector<const Release*>& releases);

/// The same job where nothing that a step made outlives it that the step after it did not let go:
/// what a list keeps of every step. Of three captured steps or more.
Variant KeepNothingOfSteps(const Variant& variant);

}  // namespace plimsoll

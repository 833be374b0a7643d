// Gradient accumulation: several passes of forward and backward before each step of the optimizer.
#pragma once

#include <optional>

#include "base/result.h"
#include "job/file/job.h"

namespace plimsoll {

/// The variant with so many passes in each step, where they can be repeated. Adds to the step's
/// strings.
Variant AddAccumulation(Job& job, const Variant& variant, int passes);

/// How many passes of forward and backward each step of the variant has.
int PassesOf(const Variant& variant);

/// Why the passes of a step cannot be repeated.
std::optional<Error> CannotAccumulate(const Job& job, const Variant& variant);

}  // namespace plimsoll

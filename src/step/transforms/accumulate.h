// Gradient accumulation: several passes of forward and backward before each step of the optimizer.
#pragma once

#include "step/file/step.h"

namespace plimsoll {

/// The variant with so many passes in each step. A job that was captured with two or more of them
/// stays as it is. Adds to the step's strings.
Variant AddAccumulation(Step& step, const Variant& variant, int passes);

/// How many passes of forward and backward each step of the variant has.
int PassesOf(const Variant& variant);

}  // namespace plimsoll

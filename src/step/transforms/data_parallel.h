// DistributedDataParallel around the captured model: its buckets and its copies of the buffers.
#pragma once

#include "step/file/step.h"

namespace plimsoll {

/// The variant as one rank of several runs it. Adds to the step's strings.
Variant AddDataParallel(Step& step, const Variant& variant);

}  // namespace plimsoll

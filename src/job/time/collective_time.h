// How long ranks take for what they do together: rings over the links between GPUs, and over the
// network where there are more ranks than a machine has GPUs.
#pragma once

#include "hardware/cluster.h"
#include "hardware/gpu.h"
#include "job/parallel/collective.h"

namespace plimsoll {

/// Microseconds from its beginning to its end, for `bytes` of the collective's at one batch size.
double CollectiveTime(const Collective& collective, double bytes, const Gpu& gpu,
                      const Cluster& cluster);

}  // namespace plimsoll

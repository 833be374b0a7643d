// How long ranks take for what they do together: rings over the links between GPUs, and over the
// network where there are more ranks than a machine has GPUs.
#pragma once

#include "hardware/gpu.h"
#include "step/transforms/collective.h"

namespace plimsoll {

/// How GPUs are joined beyond what a card says of itself.
struct Cluster {
  int gpus_in_a_node = 8;
  /// Between nodes, bytes/s in one direction for each GPU: 400 Gb/s.
  double network = 50e9;
};

/// Microseconds from its beginning to its end, for `bytes` of the collective's at one batch size.
double CollectiveTime(const Collective& collective, double bytes, const Gpu& gpu,
                      const Cluster& cluster);

}  // namespace plimsoll

// How GPUs are joined beyond what a card says of itself.
#pragma once

namespace plimsoll {

struct Cluster {
  int gpus_in_a_node = 8;
  /// Between nodes, bytes/s in one direction for each GPU: 400 Gb/s.
  double network = 50e9;
};

}  // namespace plimsoll

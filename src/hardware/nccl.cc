#include "hardware/nccl.h"

namespace plimsoll {

// One rank: measured on an H200, NCCL 2.28.9. Several: what others saw of it, 544 MiB for two A100s
// and 688 MiB for three or four over NVLink (NVIDIA/nccl, issue 964), about 1.6 GB for a
// communicator of a cluster (issue 864); beyond two nodes it should not grow (issue 986).
ContextSize NcclTakes(std::int64_t ranks) {
  if (ranks < 1) return {};
  if (ranks == 1) {
    return {.bytes = 558 * kMiB, .low = 558 * kMiB, .high = 558 * kMiB, .measured = true};
  }
  return {.bytes = 688 * kMiB, .low = 544 * kMiB, .high = 1600 * kMiB};
}

}  // namespace plimsoll

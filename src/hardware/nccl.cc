#include "hardware/nccl.h"

namespace plimsoll {

// NVLink, one rank: measured on an H200, NCCL 2.28.9. Several: what others saw of it, 544 MiB for
// two A100s and 688 MiB for three or four (NVIDIA/nccl, issue 964), about 1.6 GB for a communicator
// of a cluster (issue 864); beyond two nodes it should not grow (issue 986).
//
// Without NVLink there are fewer channels and smaller buffers: one text of 8 RTX 3080s has 369 MiB
// outside PyTorch in all, of which a context is 200 to 260 (huggingface/trl, issue 3436).
ContextSize NcclTakes(std::int64_t ranks, const Gpu& gpu) {
  if (ranks < 1) return {};
  if (gpu.vendor == GpuVendor::kAmd) {
    // RCCL is NCCL with other transports. No reading.
    return {.bytes = 688 * kMiB, .low = 100 * kMiB, .high = 1600 * kMiB};
  }
  if (gpu.interconnect.nvlink <= 0) {
    return {.bytes = 150 * kMiB,
            .low = 100 * kMiB,
            .high = (ranks == 1 ? 558 : 400) * kMiB,
            .basis = FigureBasis::kScaled};
  }
  if (ranks == 1) {
    return {.bytes = 558 * kMiB,
            .low = 558 * kMiB,
            .high = 558 * kMiB,
            .basis = FigureBasis::kMeasured};
  }
  return {
      .bytes = 688 * kMiB, .low = 544 * kMiB, .high = 1600 * kMiB, .basis = FigureBasis::kScaled};
}

}  // namespace plimsoll

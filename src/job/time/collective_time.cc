// The usual model of a ring (docs/prediction.md, "Collectives"): of n ranks each sends (n - 1) / n
// of the whole once to gather or to reduce, twice to do both. Nothing of it was measured by us; a
// link gives what NVIDIA's engineers say that NCCL gets of it.
#include "job/time/collective_time.h"

#include <algorithm>

namespace plimsoll {
namespace {

/// 350 of an H100's 450 GB/s by NVLink, 12 of 15.75 by PCIe 3 (NVIDIA/nccl, issue 986).
constexpr double kShareOfLink = 0.77;
/// Microseconds: the kernel and the first steps around the ring. An assumption.
constexpr double kStart = 20;

/// Bytes a microsecond. All GPUs of a node send at once, each over a network card of its own.
double RateOf(std::int64_t ranks, const Gpu& gpu, const Cluster& cluster) {
  const Interconnect& links = gpu.interconnect;
  double rate = links.nvlink > 0 ? links.nvlink : links.host;
  if (ranks > cluster.gpus_in_a_node) {
    rate = std::min(rate, cluster.network * cluster.gpus_in_a_node);
  }
  return kShareOfLink * rate / 1e6;
}

}  // namespace

double CollectiveTime(const Collective& collective, double bytes, const Gpu& gpu,
                      const Cluster& cluster) {
  const auto ranks = static_cast<double>(std::max<std::int64_t>(1, collective.ranks));
  const double rate = RateOf(collective.ranks, gpu, cluster);
  if (rate <= 0) return 0;
  double passes = (ranks - 1) / ranks;
  if (collective.kind == Collective::Kind::kAllReduce) passes *= 2;
  if (collective.kind == Collective::Kind::kSend) passes = 1;
  return kStart + passes * std::max(0.0, bytes) / rate;
}

}  // namespace plimsoll

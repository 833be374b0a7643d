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

/// Bytes a microsecond. All GPUs of a node send at once, each over a network card of its own: a
/// ring has as many as it has ranks in a node, what each sends to each its own.
double RateOf(const Collective& collective, const Gpu& gpu, const Cluster& cluster) {
  const Interconnect& links = gpu.interconnect;
  double rate = links.nvlink > 0 ? links.nvlink : links.host;
  if (collective.ranks * collective.apart > cluster.gpus_in_a_node) {
    const bool ring = collective.kind != Collective::Kind::kAllToAll &&
                      collective.kind != Collective::Kind::kSend;
    const std::int64_t in_a_node =
        std::max<std::int64_t>(1, cluster.gpus_in_a_node / collective.apart);
    // Stages that follow each other in a node are joined as all else in it.
    const bool alone = collective.kind == Collective::Kind::kAllToAll || in_a_node == 1;
    rate = std::min(rate, cluster.network * (ring || !alone ? double(in_a_node) : 1.0));
  }
  return kShareOfLink * rate / 1e6;
}

}  // namespace

double CollectiveTime(const Collective& collective, double bytes, const Gpu& gpu,
                      const Cluster& cluster) {
  const auto ranks = static_cast<double>(std::max<std::int64_t>(1, collective.ranks));
  const double rate = RateOf(collective, gpu, cluster);
  if (rate <= 0) return 0;
  double passes = (ranks - 1) / ranks;
  if (collective.kind == Collective::Kind::kAllReduce) passes *= 2;
  if (collective.kind == Collective::Kind::kSend) passes = 1;
  return kStart + passes * std::max(0.0, bytes) / rate;
}

}  // namespace plimsoll

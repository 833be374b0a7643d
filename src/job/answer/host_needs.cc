#include "job/answer/host_needs.h"

#include <algorithm>

#include "job/calls/arithmetic.h"
#include "job/calls/call.h"
#include "job/trial/trial.h"

namespace plimsoll {
namespace {

// Measured with PyTorch 2.11 for CUDA 13 on the H200 machine, of 14 jobs (docs/accuracy.md).
/// After `import torch`, with a context.
constexpr Bytes kImported = 614 * kMiB;
/// After some training steps: cuBLAS and the kernels that were used.
constexpr Bytes kTraining = 1085 * kMiB;
/// Likewise, with cuDNN.
constexpr Bytes kTrainingWithCudnn = 1200 * kMiB;

bool Convolves(const Job& job, const Variant& variant) {
  return std::ranges::any_of(variant.calls, [&](const CallRecord& call) {
    return job.strings[call.op].find("convolution") != std::string_view::npos;
  });
}

/// No host has more, and sums of such numbers stay numbers.
constexpr Bytes kMost = Bytes{1} << 50;

Bytes Times(Bytes bytes, std::int64_t count) { return std::min(Product(bytes, count), kMost); }

/// Tensors on the host while each later part ran. Of a loop that was cut short, what each batch
/// adds is added as often as the loop has batches.
std::vector<Bytes> TensorsLater(const Job& job, const Variant& variant, std::int64_t batch) {
  const AtBatch at(job, batch);
  std::vector<Bytes> tensors;
  for (std::size_t i = 0; i < variant.later.size() && i < job.host->later.size(); ++i) {
    const Part& part = variant.later[i];
    const Bytes last = at.Of(job.host->later[i == 0 ? 0 : i - 1].bytes);
    const Bytes now = std::clamp<Bytes>(at.Of(job.host->later[i].bytes), 0, kMost);
    const Bytes more = std::max<Bytes>(0, now - last);
    if (part.times.first > 1) {
      tensors.push_back(now + Times(more, BatchesAt(job, part.times, batch) - 1));
    } else if (part.batches.first > 1 && !tensors.empty()) {
      // All of them together: what it has beside the last batch grows with their number.
      tensors.push_back(tensors.back() +
                        Times(more / part.seen, BatchesAt(job, part.batches, batch)));
    } else {
      tensors.push_back(now);
    }
  }
  return tensors;
}

const std::string& WhereIn(const HostPeaks& host, std::size_t part) {
  if (part == PartPeaks::kBuild) return host.build.where;
  return part == PartPeaks::kSteps ? host.steps.where : host.later[part - PartPeaks::kLater].where;
}

}  // namespace

std::optional<HostNeeds> FindHostNeeds(const Job& job, const Variant& variant, std::int64_t batch) {
  if (!job.host) return std::nullopt;
  const AtBatch at(job, batch);
  std::vector<Bytes> tensors = {std::clamp<Bytes>(at.Of(job.host->build.bytes), 0, kMost),
                                std::clamp<Bytes>(at.Of(job.host->steps.bytes), 0, kMost)};
  for (const Bytes bytes : TensorsLater(job, variant, batch)) tensors.push_back(bytes);
  const Bytes training = Convolves(job, variant) ? kTrainingWithCudnn : kTraining;
  HostNeeds needs;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Bytes base = i == PartPeaks::kBuild ? kImported : training;
    const Bytes resident = base + job.host->imports + tensors[i];
    needs.by_part.push_back(resident);
    if (resident <= needs.resident) continue;
    needs.resident = resident;
    needs.base = base;
    needs.imports = job.host->imports;
    needs.tensors = tensors[i];
    needs.part = i;
    needs.where = WhereIn(*job.host, i);
  }
  return needs;
}

}  // namespace plimsoll

#include "job/answer/host_needs.h"

#include <algorithm>

#include "allocator/model/host_allocator.h"
#include "job/calls/arithmetic.h"
#include "job/calls/call.h"
#include "job/parallel/collective.h"
#include "job/transforms/block_offload.h"
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
/// What a forked worker of a loader has for itself: 29 to 38 MiB of eight loaders.
constexpr Bytes kWorker = 32 * kMiB;

bool Convolves(const Job& job, const Variant& variant) {
  return std::ranges::any_of(variant.calls, [&](const CallRecord& call) {
    return job.strings[call.op].find("convolution") != std::string_view::npos;
  });
}

/// No host has more, and sums of such numbers stay numbers.
constexpr Bytes kMost = Bytes{1} << 50;

Bytes OnHost(Bytes bytes) { return std::clamp<Bytes>(bytes, 0, kMost); }
Bytes Times(Bytes bytes, std::int64_t count) { return std::min(Product(bytes, count), kMost); }

/// Tensors on the host while each later part ran. Of a loop that was cut short, what each batch
/// adds is added as often as the loop has batches.
std::vector<Bytes> TensorsLater(const Job& job, const Variant& variant, std::int64_t batch) {
  const AtBatch at(job, batch);
  std::vector<Bytes> tensors;
  for (std::size_t i = 0; i < variant.later.size() && i < job.host->later.size(); ++i) {
    const Part& part = variant.later[i];
    const HostPeak& before = job.host->later[i == 0 ? 0 : i - 1];
    const HostPeak& peak = job.host->later[i];
    const Bytes now = OnHost(at.Of(peak.bytes));
    // What it has at its end says what it keeps; older files tell the peaks alone.
    const bool ends = peak.left && before.left && part.times.least() > 1;
    const Bytes more = std::max<Bytes>(
        0, ends ? at.Of(*peak.left) - at.Of(*before.left) : now - at.Of(before.bytes));
    if (part.times.least() > 1) {
      tensors.push_back(now + Times(more, BatchesAt(job, part.times, batch) - 1));
    } else if (part.batches.least() > 1 && !tensors.empty()) {
      // All of them together: what it has beside the last batch grows with their number.
      tensors.push_back(tensors.back() +
                        Times(more / part.seen, BatchesAt(job, part.batches, batch)));
    } else {
      tensors.push_back(now);
    }
  }
  return tensors;
}

/// Pinned memory through the job's life.
class PinnedLife {
 public:
  explicit PinnedLife(const Setting& setting)
      : at_(*setting.job, setting.batch), allocator_(setting.rules.settings.pinned) {}

  std::size_t requests() const { return requests_.size(); }

  /// What it holds at most while a part runs, which comes so many times. `loop`: requests that were
  /// made before the loop that it is of.
  Bytes Run(const std::vector<PinnedEvent>& events, std::int64_t times, std::size_t loop) {
    // From then on each adds the same.
    constexpr std::int64_t kTried = 3;
    const std::size_t known = requests_.size();
    const std::int64_t tried = std::clamp<std::int64_t>(times, 1, kTried);
    Bytes most = 0;
    Bytes before = 0;
    for (std::int64_t i = 0; i < tried; ++i) {
      before = allocator_.held();
      most = std::max(most, Once(events, loop, requests_.size() - known));
    }
    if (times > tried) more_ = OnHost(more_ + Times(allocator_.held() - before, times - tried));
    // The next part knows those of the last time.
    const auto from = requests_.begin() + static_cast<std::ptrdiff_t>(loop);
    const std::size_t once = (requests_.size() - known) / static_cast<std::size_t>(tried);
    requests_.erase(from, from + static_cast<std::ptrdiff_t>(requests_.size() - known - once));
    return OnHost(most + more_);
  }

 private:
  /// A loop gives back what it asked for some batches before: `later` requests on, where it runs
  /// once more.
  Bytes Once(const std::vector<PinnedEvent>& events, std::size_t loop, std::size_t later) {
    Bytes most = allocator_.held();
    for (const PinnedEvent& event : events) {
      const std::size_t ended = event.ends > loop ? event.ends + later : event.ends;
      if (event.ends == 0) {
        requests_.push_back(allocator_.Take(at_.Of(event.bytes)));
      } else if (ended <= requests_.size()) {
        allocator_.Give(requests_[ended - 1]);
      }
      most = std::max(most, allocator_.held());
    }
    return most;
  }

  AtBatch at_;
  HostAllocator allocator_;
  /// By the number that they have in the capture.
  std::vector<HostAllocator::Request> requests_;
  /// Of repetitions that were not run.
  Bytes more_ = 0;
};

/// In the order of Peaks::parts.
std::vector<const HostPeak*> PeaksOf(const HostPeaks& host) {
  std::vector<const HostPeak*> peaks = {&host.build, &host.steps};
  for (const HostPeak& peak : host.later) peaks.push_back(&peak);
  return peaks;
}

/// What blocks leave there in a step, in buffers that are kept for the next one.
Bytes WaitingOf(const Setting& setting, const AtBatch& at) {
  const Variant& variant = setting.variant();
  Bytes most = 0;
  HostAllocator of_step(setting.rules.settings.pinned);
  for (const JobEvent& event : variant.events) {
    if (event.kind == JobEvent::Kind::kStep) {
      of_step = HostAllocator(setting.rules.settings.pinned);
    }
    if (event.kind != JobEvent::Kind::kCall) continue;
    const std::optional<SideCopy> copy = SideCopyOf(*setting.job, variant.calls[event.index]);
    if (!copy || !copy->leaves) continue;
    for (const Number& bytes : copy->bytes) of_step.Take(OnHost(at.Of(bytes)));
    most = std::max(most, of_step.held());
  }
  return OnHost(most);
}

std::int64_t RanksOnMachine(const Setting& setting) {
  const std::int64_t ranks = RanksOf(*setting.job, setting.variant());
  return std::clamp<std::int64_t>(ranks, 1, setting.cluster.gpus_in_a_node);
}

}  // namespace

Bytes HostNeeds::of_machine() const { return Times(peak().with_workers(), ranks); }

Bytes HostNeeds::shared() const { return std::ranges::max(parts, {}, &HostPart::shared).shared; }

Bytes HostNeeds::pinned() const { return std::ranges::max(parts, {}, &HostPart::pinned).pinned; }

std::optional<HostNeeds> FindHostNeeds(const Setting& setting) {
  const Job& job = *setting.job;
  const Variant& variant = setting.variant();
  if (!job.host) return std::nullopt;
  const AtBatch at(job, setting.batch);
  std::vector<Bytes> tensors = {OnHost(at.Of(job.host->build.bytes)),
                                OnHost(at.Of(job.host->steps.bytes))};
  for (const Bytes bytes : TensorsLater(job, variant, setting.batch)) tensors.push_back(bytes);
  const std::vector<const HostPeak*> peaks = PeaksOf(*job.host);
  const Bytes training = Convolves(job, variant) ? kTrainingWithCudnn : kTraining;
  const Bytes waiting = WaitingOf(setting, at);
  PinnedLife pinned(setting);
  std::size_t loop = 0;
  HostNeeds needs{.ranks = RanksOnMachine(setting)};
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const HostPeak& peak = *peaks[i];
    const bool is_later = i >= PartPeaks::kLater;
    const Part* part = is_later ? &variant.later[i - PartPeaks::kLater] : nullptr;
    if (!part || i == PartPeaks::kLater || part[-1].stage != part->stage) loop = pinned.requests();
    const std::int64_t times = part ? BatchesAt(job, part->times, setting.batch) : 1;
    const std::int64_t workers = OnHost(at.Of(peak.workers));
    needs.parts.push_back({.base = i == PartPeaks::kBuild ? kImported : training,
                           .imports = job.host->imports,
                           .tensors = tensors[i],
                           .pinned = OnHost(pinned.Run(peak.pinned, times, loop) +
                                            (i == PartPeaks::kBuild ? 0 : waiting)),
                           .workers = workers,
                           .of_workers = Times(kWorker, workers),
                           .shared = OnHost(at.Of(peak.shared)),
                           .where = peak.where});
    if (needs.parts.back().with_workers() > needs.peak().with_workers()) needs.most = i;
  }
  return needs;
}

bool FitsItsHost(const Setting& setting) {
  if (!setting.host_room) return true;
  const std::optional<HostNeeds> needs = FindHostNeeds(setting);
  return !needs || needs->of_machine() <= *setting.host_room;
}

}  // namespace plimsoll

// Measured on an H200 (torch 2.11, CUDA 13) as device memory in use less reserved memory, in the
// five records that had the device to themselves: 526.8 MiB before the first operator, 766.8 to
// 770.8 MiB from the first backward on.
//
// Elsewhere by 24 public readings of single processes with lazy loading, torch 2.1 to 2.11
// (context_test.cc has them with their sources): a line over the stacks, which are 1 KiB (the
// default of cudaLimitStackSize) for each thread that the card can hold. Least squares of the
// logarithms, since the readings scatter by a share of themselves. Each is within 19 % of it.
#include "hardware/context.h"

#include <algorithm>

namespace plimsoll {
namespace {

constexpr Bytes kBase = 61 * kMiB;
constexpr double kPerStack = 1.89;
/// Readings reach from -13 % to +19 % of the line.
constexpr double kSpread = 0.20;

/// What forward and backward load on top: kernels of attention and cuDNN. 240 to 244 MiB on the
/// H200, nothing in one text of a 4090.
constexpr Bytes kTrainingLoads = 120 * kMiB;
constexpr Bytes kMostTrainingLoads = 250 * kMiB;

constexpr ContextSize kBareH200 = {
    .bytes = 552402944, .low = 552402944, .high = 552402944, .basis = FigureBasis::kMeasured};
constexpr ContextSize kTrainingH200 = {
    .bytes = 808255488, .low = 552402944, .high = 808255488, .basis = FigureBasis::kMeasured};

/// Three texts of H100s have 503 to 532 MiB outside.
constexpr Bytes kLeastOfHopper = 500 * kMiB;
constexpr Bytes kMostBareOfHopper = 600 * kMiB;
constexpr Bytes kMostOfHopper = 800 * kMiB;

/// ROCm's texts do not say what a process uses.
constexpr ContextSize kHip = {.bytes = 512 * kMiB, .low = 128 * kMiB, .high = kGiB};

/// Whole MiB: no reading is any closer.
Bytes Share(Bytes bytes, double share) {
  return static_cast<Bytes>(share * double(bytes)) / kMiB * kMiB;
}

}  // namespace

void SetContext(Gpu& gpu) {
  if (gpu.vendor == GpuVendor::kAmd) {
    gpu.bare = kHip;
    gpu.context = kHip;
    return;
  }
  if (gpu.name == "H200") {
    gpu.bare = kBareH200;
    gpu.context = kTrainingH200;
    return;
  }
  const ComputeCapability hopper{9, 0};
  constexpr int kWholeHopper = 132;
  if (gpu.capability == hopper && gpu.multiprocessors == kWholeHopper) {
    gpu.bare = {kBareH200.bytes, kLeastOfHopper, kMostBareOfHopper, FigureBasis::kAlike};
    gpu.context = {kTrainingH200.bytes, kLeastOfHopper, kMostOfHopper, FigureBasis::kAlike};
    return;
  }
  const Bytes stacks = Bytes{gpu.multiprocessors} * gpu.threads_per_multiprocessor * kKiB;
  const Bytes bare = kBase + Share(stacks, kPerStack);
  const Bytes least = bare - Share(bare, kSpread);
  const Bytes most = bare + Share(bare, kSpread);
  // What is loaded is code, and Hopper's is what the H200 loaded.
  const Bytes loads =
      gpu.capability == hopper ? kTrainingH200.bytes - kBareH200.bytes : kTrainingLoads;
  gpu.bare = {bare, least, most, FigureBasis::kScaled};
  gpu.context = {bare + loads, least, most + kMostTrainingLoads, FigureBasis::kScaled};
}

void SetMeasuredContext(Gpu& gpu, Bytes bare, Bytes training) {
  gpu.bare = {bare, bare, bare, FigureBasis::kMeasuredHere};
  gpu.context = {training, bare, std::max(training, bare + kMostTrainingLoads),
                 FigureBasis::kMeasuredHere};
}

}  // namespace plimsoll

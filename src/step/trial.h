// One batch of a step put to the allocator, once: what Predict and FindMaxBatch are made of.
#pragma once

#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/driver.h"
#include "base/result.h"
#include "step/lowering/lower.h"
#include "step/predict.h"
#include "step/time/step_time.h"

namespace plimsoll {

/// Where a driver puts segments is tried in so many other ways, numbered from 1.
inline constexpr std::uint64_t kShuffles = 6;
inline ShuffledDriver ShuffleOf(std::uint64_t number) { return ShuffledDriver(number * 1000003); }
/// A run may differ from what is known by a little, whatever is known: a percent each way.
inline constexpr double kMargin = 0.01;

/// Everything that a run depends on besides the batch.
struct Setting {
  const Step& step;
  const Variant& variant;
  const Gpu& gpu;
  AllocatorRules rules;
  TorchVersion torch;
  const Calibration* calibration = nullptr;
  DeviceLimits limits;
  int steps = 5;
  /// For the ranks of the step's collectives; nothing with another backend.
  ContextSize nccl = {};

  /// The context, and NCCL beside it.
  ContextSize Outside() const;
  /// What the allocator may ask for: the limit, or what is left of the card.
  Bytes Room() const;
  /// What it can hold at most. With expandable segments PyTorch compares what it asks for with the
  /// limit, and then maps whole pages for it: up to one more.
  Bytes Most() const;
  /// Up to 2.11 the allocator breaks ties by address, and where a driver puts a segment differs
  /// from process to process.
  bool AddressesMatter() const { return torch <= TorchVersion{2, 11}; }
  bool CollectsGarbage() const { return rules.settings.garbage_collection_threshold > 0; }
};

Result<Setting> MakeSetting(const Step& step, const Gpu& gpu, const PredictOptions& options);

Lowered LowerFor(const Setting& setting, std::int64_t batch, Estimate estimate);

/// The peaks of one run.
struct Peaks {
  Bytes allocated = 0;
  Bytes reserved = 0;
  bool fits = true;
  /// Workspaces that were refused, in all steps together.
  std::int64_t refused = 0;
  /// What is slow in the last step: the calls that were refused, in any step.
  RefusedCalls refused_calls;
  /// The request at which allocated memory peaks first.
  std::size_t request = 0;
  std::vector<Bytes> reserved_after_step;
  /// Those that it ran under.
  DeviceLimits limits;
};

/// So large that nothing runs out of addresses, to see how much a job would take.
inline constexpr DeviceLimits kUnlimitedDevice{.total = Bytes{1} << 50};

Peaks Run(const Lowered& lowered, const Setting& setting, const DeviceLimits& limits,
          Driver& driver);
/// With the addresses that an H200's driver was mostly seen to give.
Peaks Run(const Lowered& lowered, const Setting& setting, const DeviceLimits& limits);

/// The run within the setting's limits that decides whether it fits. `unlimited` is the same run
/// without them: a job that stays below them by itself never meets them.
Peaks Decide(const Peaks& unlimited, const Lowered& lowered, const Setting& setting);
Peaks Decide(const Lowered& lowered, const Setting& setting);

/// Whether it fits even if every workspace and the context are as large as they may be, wherever
/// the driver puts the segments, with a margin, and without refusing anything. `decided` is the
/// likely course.
bool SurelyFits(const Peaks& decided, const Lowered& upper, const Setting& setting);

}  // namespace plimsoll

#include "step/predict.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "allocator/replay.h"
#include "step/calibration.h"
#include "step/time/cost.h"

namespace plimsoll {
namespace {

constexpr std::size_t kMostHolders = 12;
/// Drivers that are tried for the range.
constexpr std::uint64_t kShuffles = 6;
/// A run may differ from what is known by a little, whatever is known: a percent each way.
constexpr double kMargin = 0.01;
constexpr std::int64_t kLargestBatch = std::int64_t{1} << 24;

/// Everything that one run of a step depends on.
struct Setting {
  const Step& step;
  const Variant& variant;
  const Gpu& gpu;
  AllocatorRules rules;
  TorchVersion torch;
  const Calibration* calibration = nullptr;
  DeviceLimits limits;
  int steps = 5;
};

Result<Setting> MakeSetting(const Step& step, const Gpu& gpu, const PredictOptions& options) {
  const Result<const Variant*> variant = ChooseVariant(step, options);
  if (!variant) return variant.error();
  const Result<AllocatorRules> rules = AllocatorRulesFor(step, options);
  if (!rules) return rules.error();
  DeviceLimits limits{.limit = options.limit,
                      .capacity = std::max<Bytes>(0, gpu.memory - gpu.context.bytes),
                      .total = gpu.memory};
  const std::optional<double> fraction = rules->settings.per_process_memory_fraction;
  if (fraction && !limits.limit) {
    limits.limit = static_cast<Bytes>(*fraction * static_cast<double>(gpu.memory));
  }
  return Setting{.step = step,
                 .variant = **variant,
                 .gpu = gpu,
                 .rules = *rules,
                 .torch = TorchFor(step, options),
                 .calibration = options.calibration,
                 .limits = limits,
                 .steps = options.steps};
}

/// The peaks of one run.
struct Peaks {
  Bytes allocated = 0;
  Bytes reserved = 0;
  bool fits = true;
  std::int64_t done_without = 0;
  /// The request at which allocated memory peaks first.
  std::size_t request = 0;
  std::vector<Bytes> reserved_after_step;
};

Peaks Run(const Lowered& lowered, const Setting& setting, const DeviceLimits& limits,
          Driver& driver) {
  Replayer replayer(lowered.workload, {.rules = setting.rules, .limits = limits}, driver);
  Peaks peaks;
  for (std::size_t i = 0; i < lowered.workload.requests.size(); ++i) {
    replayer.Run(i);
    const AllocatorCounters& counters = replayer.allocator().counters();
    if (counters.peak_allocated > peaks.allocated) {
      peaks.allocated = counters.peak_allocated;
      peaks.request = i;
    }
    const auto step = static_cast<std::size_t>(std::max(0, lowered.moments[i].step));
    if (peaks.reserved_after_step.size() <= step) peaks.reserved_after_step.resize(step + 1);
    peaks.reserved_after_step[step] = counters.peak_reserved;
  }
  const ReplayResult result = replayer.result();
  peaks.reserved = result.counters.peak_reserved;
  peaks.fits = result.fits;
  peaks.done_without = result.done_without;
  return peaks;
}

/// With the addresses that an H200's driver was mostly seen to give.
Peaks Run(const Lowered& lowered, const Setting& setting, const DeviceLimits& limits) {
  const Timeline nothing_recorded;
  AssumedDriver driver(nothing_recorded);
  return Run(lowered, setting, limits, driver);
}

/// Within the limits. Where workspaces are refused, cuDNN takes others that are not known but take
/// something too: then a percent of the room has to be left for them (docs/prediction.md).
Peaks RunLimited(const Lowered& lowered, const Setting& setting) {
  const Peaks peaks = Run(lowered, setting, setting.limits);
  if (!peaks.fits || peaks.done_without == 0) return peaks;
  DeviceLimits less = setting.limits;
  if (less.limit) *less.limit -= static_cast<Bytes>(kMargin * double(*less.limit));
  if (less.capacity) *less.capacity -= static_cast<Bytes>(kMargin * double(*less.capacity));
  Peaks tighter = Run(lowered, setting, less);
  tighter.done_without = peaks.done_without;
  return tighter;
}

/// Up to 2.11 the allocator breaks ties by address, and where a driver puts a segment differs from
/// process to process: the spread over several drivers shows how much hangs on it.
Range SpreadOf(const Lowered& lowered, const Setting& setting, Bytes best) {
  Range range{best, best, best};
  if (setting.torch > TorchVersion{2, 11}) return range;
  for (std::uint64_t seed = 1; seed <= kShuffles; ++seed) {
    ShuffledDriver driver(seed * 1000003);
    Replayer replayer(lowered.workload, {.rules = setting.rules, .limits = kUnlimitedDevice},
                      driver);
    replayer.Run();
    const Bytes reserved = replayer.result().counters.peak_reserved;
    range.low = std::min(range.low, reserved);
    range.high = std::max(range.high, reserved);
  }
  return range;
}

Lowered LowerFor(const Setting& setting, std::int64_t batch, Estimate estimate) {
  return Lower(setting.step, setting.variant, setting.gpu,
               {.batch = batch,
                .steps = setting.steps,
                .torch = setting.torch,
                .calibration = setting.calibration,
                .estimate = estimate});
}

/// How it goes within the limits. A job that stays below them by itself never meets them.
Peaks RunWithin(const Peaks& unlimited, const Lowered& lowered, const Setting& setting) {
  const Bytes room = std::min(setting.limits.capacity.value_or(kNoDevice),
                              setting.limits.limit.value_or(kNoDevice));
  const bool collects = setting.rules.settings.garbage_collection_threshold > 0;
  if (unlimited.reserved <= room && !collects) return unlimited;
  return RunLimited(lowered, setting);
}

bool FitsAt(const Setting& setting, std::int64_t batch) {
  return RunLimited(LowerFor(setting, batch, Estimate::kLikely), setting).fits;
}

/// Even if every workspace and the context are as large as they may be, wherever the driver puts
/// the segments, with a margin, and without refusing anything.
bool SurelyFitsAt(const Setting& setting, std::int64_t batch) {
  const auto less = [](Bytes bytes) { return bytes - static_cast<Bytes>(kMargin * double(bytes)); };
  DeviceLimits limits = setting.limits;
  limits.capacity = less(setting.gpu.memory - setting.gpu.context.high);
  if (limits.limit) limits.limit = less(*limits.limit);
  const Lowered lowered = LowerFor(setting, batch, Estimate::kUpper);
  const auto fits = [](const Peaks& peaks) { return peaks.fits && peaks.done_without == 0; };
  if (!fits(Run(lowered, setting, limits))) return false;
  const std::uint64_t shuffles = setting.torch > TorchVersion{2, 11} ? 0 : kShuffles;
  for (std::uint64_t seed = 1; seed <= shuffles; ++seed) {
    ShuffledDriver driver(seed * 1000003);
    if (!fits(Run(lowered, setting, limits, driver))) return false;
  }
  return true;
}

Range Widened(const Range& range) {
  return {range.low - static_cast<Bytes>(kMargin * double(range.low)), range.best,
          range.high + static_cast<Bytes>(kMargin * double(range.high))};
}

/// The blocks that are alive after a request.
std::vector<std::uint32_t> AliveAt(const Lowered& lowered, std::size_t request) {
  std::vector<char> alive(lowered.blocks.size(), 0);
  for (std::size_t i = 0; i <= request && i < lowered.workload.requests.size(); ++i) {
    const Request& r = lowered.workload.requests[i];
    // What is borrowed is there at its own request only.
    alive[r.allocation] =
        r.kind == Request::Kind::kAllocate || (r.kind == Request::Kind::kBorrow && i == request);
  }
  std::vector<std::uint32_t> blocks;
  for (std::uint32_t b = 0; b < alive.size(); ++b) {
    if (alive[b]) blocks.push_back(b);
  }
  return blocks;
}

void AddAccount(const Lowered& lowered, const std::vector<std::uint32_t>& alive,
                Prediction& prediction) {
  std::array<Bytes, kCategoryCount> sums{};
  Bytes requested = 0;
  for (const std::uint32_t b : alive) {
    sums[static_cast<std::size_t>(lowered.blocks[b].category)] += lowered.blocks[b].requested;
    requested += lowered.blocks[b].requested;
  }
  const auto line = [&](AccountItem what, Bytes bytes) {
    if (bytes != 0) prediction.account.push_back({.what = what, .bytes = bytes});
  };
  for (const Category c : kCategories) line(ItemOf(c), sums[static_cast<std::size_t>(c)]);
  line(AccountItem::kRounding, prediction.allocated.best - requested);
  line(AccountItem::kCached, prediction.reserved.best - prediction.allocated.best);
  line(AccountItem::kOutside, prediction.device.best - prediction.reserved.best);
}

void AddHolders(const Lowered& lowered, const Setting& setting,
                const std::vector<std::uint32_t>& alive, Prediction& prediction) {
  const StringTable& strings = setting.step.strings;
  std::map<std::tuple<std::string_view, std::string_view, Category>, Holder> sums;
  for (const std::uint32_t b : alive) {
    const LoweredBlock& block = lowered.blocks[b];
    std::string_view where;
    std::string_view module;
    if (block.call != LoweredBlock::kNoCall) {
      const CallRecord& call = setting.variant.calls[block.call];
      where = strings[call.where];
      module = strings[call.module];
      if (where.empty()) where = strings[call.op];
    } else if (block.model_tensor != LoweredBlock::kNoCall) {
      where = "the model";
    }
    Holder& holder = sums[{where, module, block.category}];
    holder.bytes += block.requested;
    ++holder.count;
  }
  for (auto& [key, holder] : sums) {
    std::tie(holder.where, holder.module, holder.category) = key;
    prediction.holders.push_back(std::move(holder));
  }
  std::stable_sort(prediction.holders.begin(), prediction.holders.end(),
                   [](const Holder& a, const Holder& b) { return a.bytes > b.bytes; });
  if (prediction.holders.size() > kMostHolders) prediction.holders.resize(kMostHolders);
}

void AddPeak(const Lowered& lowered, const Setting& setting, const Peaks& peaks,
             Prediction& prediction) {
  prediction.peak = lowered.moments[peaks.request];
  if (prediction.peak.call == LoweredBlock::kNoCall) return;
  const CallRecord& call = setting.variant.calls[prediction.peak.call];
  prediction.peak_op = setting.step.strings[call.op];
  prediction.peak_where = setting.step.strings[call.where];
  prediction.peak_module = setting.step.strings[call.module];
}

void AddAssumptions(const Lowered& lowered, const Setting& setting, Prediction& prediction) {
  prediction.assumptions = setting.step.notes;
  std::string names;
  int count = 0;
  for (const auto& [name, calls] : lowered.unknown) {
    names += (names.empty() ? "" : ", ") + name;
    count += calls;
  }
  if (count > 0) {
    prediction.assumptions.push_back(
        fmt::format("{} call{} of operators that were never measured count with their results "
                    "alone: {}",
                    count, count == 1 ? "" : "s", names));
  }
}

}  // namespace

Result<const Variant*> ChooseVariant(const Step& step, const PredictOptions& options) {
  if (!options.precision) return &step.variants.front();
  std::string known;
  for (const Variant& variant : step.variants) {
    if (variant.precision == *options.precision) return &variant;
    known += (known.empty() ? "" : ", ") + variant.precision;
  }
  return Error{.message = fmt::format("precision {} was not captured (there is: {})",
                                      *options.precision, known),
               .file = step.file,
               .hint = fmt::format("capture with precisions=[\"{}\"]", *options.precision)};
}

TorchVersion TorchFor(const Step& step, const PredictOptions& options) {
  return options.torch.value_or(ParseTorchVersion(step.torch).value_or(TorchVersion{}));
}

Result<AllocatorRules> AllocatorRulesFor(const Step& step, const PredictOptions& options) {
  const TorchVersion torch = TorchFor(step, options);
  const Result<AllocatorSettings> settings = ParseAllocatorSettings(options.conf, torch);
  if (!settings) return settings.error();
  if (!settings->native) {
    return Error{.message =
                     "backend:cudaMallocAsync is the driver's own allocator, of which there "
                     "is no model",
                 .hint = "leave backend out"};
  }
  return AllocatorRules{.settings = *settings, .release = RulesOf(torch)};
}

Result<Prediction> Predict(const Step& step, const Gpu& gpu, const PredictOptions& options) {
  const Result<Setting> setting = MakeSetting(step, gpu, options);
  if (!setting) return setting.error();
  const Lowered lowered = LowerFor(*setting, options.batch, Estimate::kLikely);
  if (lowered.workload.requests.empty()) {
    return Error{.message = "the step allocates nothing", .file = step.file};
  }
  // How much it takes where nothing stops it, and then whether it fits.
  const Peaks peaks = Run(lowered, *setting, kUnlimitedDevice);
  const Lowered upper = LowerFor(*setting, options.batch, Estimate::kUpper);
  const Peaks upper_peaks = Run(upper, *setting, kUnlimitedDevice);

  Prediction prediction{.file = step.file,
                        .model = step.model,
                        .precision = setting->variant.precision,
                        .settings = FormatSettings(setting->rules.settings),
                        .gpu = gpu,
                        .torch = setting->torch,
                        .batch = options.batch,
                        .steps = options.steps};
  const Range spread = SpreadOf(lowered, *setting, peaks.reserved);
  prediction.allocated =
      Widened({peaks.allocated, peaks.allocated, std::max(peaks.allocated, upper_peaks.allocated)});
  // What was not tried may lie as far beyond as half of what was.
  const Bytes beyond = (spread.high - spread.low) / 2;
  prediction.reserved =
      Widened({spread.low, peaks.reserved, std::max(spread.high + beyond, upper_peaks.reserved)});
  prediction.device = {prediction.reserved.low + gpu.context.low,
                       prediction.reserved.best + gpu.context.bytes,
                       prediction.reserved.high + gpu.context.high};
  prediction.limit = setting->limits.limit;
  prediction.room = std::min(setting->limits.capacity.value_or(gpu.memory),
                             setting->limits.limit.value_or(gpu.memory));
  const Peaks within = RunWithin(peaks, lowered, *setting);
  prediction.fits = within.fits;
  prediction.workspaces_refused = within.done_without;
  prediction.surely_fits = prediction.fits && SurelyFitsAt(*setting, options.batch);
  prediction.reserved_after_step = peaks.reserved_after_step;
  prediction.step_us = StepMicroseconds(step, setting->variant, gpu, options.batch);

  const std::vector<std::uint32_t> alive = AliveAt(lowered, peaks.request);
  AddPeak(lowered, *setting, peaks, prediction);
  AddAccount(lowered, alive, prediction);
  AddHolders(lowered, *setting, alive, prediction);
  AddAssumptions(lowered, *setting, prediction);
  return prediction;
}

Result<MaxBatch> FindMaxBatch(const Step& step, const Gpu& gpu, const PredictOptions& options) {
  const Result<Setting> setting = MakeSetting(step, gpu, options);
  if (!setting) return setting.error();
  // The largest that fits, between one that does and one that does not.
  const auto halve = [&](auto fits_at, std::int64_t fits, std::int64_t too_large) {
    while (fits + 1 < too_large) {
      const std::int64_t middle = fits + (too_large - fits) / 2;
      (fits_at(*setting, middle) ? fits : too_large) = middle;
    }
    return fits;
  };
  std::int64_t fits = 0;
  std::int64_t too_large = 1;
  while (too_large < kLargestBatch && FitsAt(*setting, too_large)) {
    fits = too_large;
    too_large *= 2;
  }
  MaxBatch found;
  found.batch = halve(FitsAt, fits, too_large);
  found.safe_batch = SurelyFitsAt(*setting, found.batch)
                         ? found.batch
                         : halve(SurelyFitsAt, 0, std::max<std::int64_t>(1, found.batch));
  return found;
}

}  // namespace plimsoll

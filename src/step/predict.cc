#include "step/predict.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "allocator/replay.h"
#include "base/check.h"
#include "base/suggest.h"
#include "step/prediction_invariants.h"
#include "step/time/step_time.h"
#include "step/trial.h"

namespace plimsoll {
namespace {

constexpr std::size_t kMostHolders = 12;

/// Of a run without limits over several drivers: how much hangs on where they put segments.
Range SpreadOf(const Lowered& lowered, const Setting& setting, Bytes best) {
  Range range{best, best, best};
  if (!setting.AddressesMatter()) return range;
  for (std::uint64_t shuffle = 1; shuffle <= kShuffles; ++shuffle) {
    ShuffledDriver driver = ShuffleOf(shuffle);
    Replayer replayer(lowered.workload, {.rules = setting.rules, .limits = kUnlimitedDevice},
                      driver);
    replayer.Run();
    const Bytes reserved = replayer.result().counters.peak_reserved;
    range.low = std::min(range.low, reserved);
    range.high = std::max(range.high, reserved);
  }
  return range;
}

Range Widened(const Range& range) {
  return {range.low - static_cast<Bytes>(kMargin * double(range.low)), range.best,
          range.high + static_cast<Bytes>(kMargin * double(range.high)) + 1};
}

Range OnDevice(const Range& reserved, const ContextSize& outside) {
  return {reserved.low + outside.low, reserved.best + outside.bytes, reserved.high + outside.high};
}

/// What it takes where nothing limits it.
Needs WithoutLimits(const Lowered& lowered, const Peaks& peaks, const Lowered& upper,
                    const Setting& setting) {
  const Peaks most = Run(upper, setting, kUnlimitedDevice);
  const Range spread = SpreadOf(lowered, setting, peaks.reserved);
  const Range spread_of_most = SpreadOf(upper, setting, most.reserved);
  // What was not tried may lie as far beyond as half of what was.
  const Bytes beyond = (spread.high - spread.low) / 2;
  Needs figures;
  figures.allocated =
      Widened({peaks.allocated, peaks.allocated, std::max(peaks.allocated, most.allocated)});
  figures.reserved =
      Widened({spread.low, peaks.reserved, std::max(spread.high + beyond, spread_of_most.high)});
  figures.device = OnDevice(figures.reserved, setting.Outside());
  return figures;
}

/// What it takes within the room, where it fits. Nothing can hold more than there is: if it surely
/// fits, the range ends there.
Needs WithinRoom(const Needs& unlimited, const Peaks& within, const Setting& setting, bool surely) {
  const auto cut = [&](const Range& range, Bytes best, Bytes end) -> Range {
    return {std::min(range.low, best), best,
            std::max(best, surely ? std::min(range.high, end) : range.high)};
  };
  Needs figures;
  figures.reserved = cut(unlimited.reserved, within.reserved, setting.Most());
  figures.allocated = cut(unlimited.allocated, within.allocated, figures.reserved.high);
  figures.device = OnDevice(figures.reserved, setting.Outside());
  if (surely) figures.device.high = std::min(figures.device.high, setting.gpu.memory);
  return figures;
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

void AddAccount(const Lowered& lowered, const std::vector<std::uint32_t>& alive, Bytes nccl,
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
  line(AccountItem::kOutside, prediction.device.best - prediction.reserved.best - nccl);
  line(AccountItem::kNccl, nccl);
}

void AddHolders(const Lowered& lowered, const Setting& setting,
                const std::vector<std::uint32_t>& alive, Prediction& prediction) {
  const StringTable& strings = setting.step.strings;
  std::map<std::tuple<std::string_view, std::string, Category>, Holder> sums;
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
    Holder& holder = sums[{where, FoldedLayers(module), block.category}];
    holder.bytes += block.requested;
    ++holder.count;
  }
  std::vector<Holder> rows;
  for (auto& [key, holder] : sums) {
    std::tie(holder.where, holder.module, holder.category) = key;
    rows.push_back(std::move(holder));
  }
  prediction.holders = ByLine(std::move(rows));
  KeepLargest(prediction.holders, kMostHolders);
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
  std::vector<std::string_view> known;
  for (const Variant& variant : step.variants) {
    if (variant.precision == *options.precision) return &variant;
    known.push_back(variant.precision);
  }
  const std::string near = DidYouMean(*options.precision, known);
  return Error{.message = fmt::format("precision {} was not captured (there is: {})",
                                      *options.precision, fmt::join(known, ", ")),
               .file = step.file,
               .hint = near.empty()
                           ? fmt::format("capture with precisions=[\"{}\"]", *options.precision)
                           : near};
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
  Prediction prediction;
  prediction.file = step.file;
  prediction.model = step.model;
  prediction.precision = setting->variant.precision;
  prediction.settings = FormatSettings(setting->rules.settings);
  prediction.gpu = gpu;
  prediction.torch = setting->torch;
  prediction.batch = options.batch;
  prediction.passes = setting->variant.passes;
  prediction.sizes_change = step.sizes_change;
  prediction.steps = options.steps;
  prediction.limit = setting->limits.limit;
  prediction.room = setting->Room();
  prediction.most = setting->Most();

  const Lowered upper = LowerFor(*setting, options.batch, Estimate::kUpper);
  const Peaks unlimited = Run(lowered, *setting, kUnlimitedDevice);
  const Peaks within = Decide(unlimited, lowered, *setting);
  prediction.fits = within.fits;
  prediction.surely_fits = SurelyFits(within, upper, *setting);
  prediction.beyond_count = !unlimited.fits;
  prediction.unlimited = WithoutLimits(lowered, unlimited, upper, *setting);
  // All that follows is about one run: the one that decided, or, where that ran out, the one
  // without limits.
  const Peaks& shown = within.fits ? within : unlimited;
  static_cast<Needs&>(prediction) =
      within.fits ? WithinRoom(prediction.unlimited, within, *setting, prediction.surely_fits)
                  : prediction.unlimited;
  prediction.workspaces_refused = shown.refused;
  for (const auto& [call, count] : shown.refused_calls) prediction.refused_in_a_step += count;
  prediction.reserved_after_step = shown.reserved_after_step;
  prediction.unlimited_step_us =
      StepTime(step, setting->variant, gpu, options.batch, {}, MeasuredHost(), options.cluster).us;
  const StepDuration duration = StepTime(step, setting->variant, gpu, options.batch,
                                         shown.refused_calls, MeasuredHost(), options.cluster);
  prediction.step_us = duration.us;
  prediction.gpu_busy_us = duration.gpu.us;
  prediction.waited_us = duration.waited_us;

  const std::vector<std::uint32_t> alive = AliveAt(lowered, shown.request);
  AddPeak(lowered, *setting, shown, prediction);
  AddAccount(lowered, alive, setting->nccl.bytes, prediction);
  AddHolders(lowered, *setting, alive, prediction);
  AddAssumptions(lowered, *setting, prediction);
#ifndef NDEBUG
  PLIMSOLL_CHECK(BrokenInvariants(prediction).empty());
#endif
  return prediction;
}

}  // namespace plimsoll

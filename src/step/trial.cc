#include "step/trial.h"

#include <algorithm>
#include <map>
#include <utility>

#include "allocator/replay.h"
#include "hardware/nccl.h"
#include "step/transforms/collective.h"

namespace plimsoll {
namespace {

/// What may be used so that a percent more still fits.
Bytes WithMargin(Bytes bytes) {
  return static_cast<Bytes>(static_cast<double>(bytes) / (1 + kMargin));
}

DeviceLimits WithMargin(DeviceLimits limits) {
  if (limits.limit) limits.limit = WithMargin(*limits.limit);
  if (limits.capacity) limits.capacity = WithMargin(*limits.capacity);
  return limits;
}

/// The calls of each captured step, in order, by operator.
using CallsByOperator = std::map<StringId, std::vector<std::uint32_t>>;
std::vector<CallsByOperator> CallsOfSteps(const Variant& variant) {
  std::vector<CallsByOperator> steps;
  for (const StepEvent& event : variant.events) {
    if (event.kind == StepEvent::Kind::kStep) steps.emplace_back();
    if (event.kind != StepEvent::Kind::kCall || steps.empty()) continue;
    steps.back()[variant.calls[event.index].op].push_back(event.index);
  }
  return steps;
}

/// PyTorch remembers which way a convolution of a shape took, so that one that was refused its
/// workspace in any step is slow in all that follow: its counterpart in the last step, if the steps
/// are alike.
RefusedCalls InLastStep(const Variant& variant, const RefusedCalls& refused) {
  RefusedCalls found;
  if (refused.empty()) return found;
  const std::vector<CallsByOperator> steps = CallsOfSteps(variant);
  for (const CallsByOperator& step : steps) {
    for (const auto& [op, calls] : step) {
      const auto last = steps.back().find(op);
      if (last == steps.back().end() || last->second.size() != calls.size()) continue;
      for (std::size_t i = 0; i < calls.size(); ++i) {
        const auto call = refused.find(calls[i]);
        if (call == refused.end()) continue;
        int& count = found[last->second[i]];
        count = std::max(count, call->second);
      }
    }
  }
  return found;
}

}  // namespace

Bytes Setting::Room() const {
  return std::min(limits.capacity.value_or(gpu.memory), limits.limit.value_or(gpu.memory));
}

Bytes Setting::Most() const {
  const bool by_pages = limits.limit && rules.settings.expandable_segments;
  return std::min(limits.capacity.value_or(gpu.memory),
                  Room() + (by_pages ? rules.settings.large_segment_size : 0));
}

ContextSize Setting::Outside() const {
  return {.bytes = gpu.context.bytes + nccl.bytes,
          .low = gpu.context.low + nccl.low,
          .high = gpu.context.high + nccl.high};
}

Result<Setting> MakeSetting(const Step& step, const Gpu& gpu, const PredictOptions& options) {
  const Result<const Variant*> variant = ChooseVariant(step, options);
  if (!variant) return variant.error();
  const Result<AllocatorRules> rules = AllocatorRulesFor(step, options);
  if (!rules) return rules.error();
  const ContextSize nccl =
      step.backend == Backend::kNccl ? NcclTakes(RanksOf(step, **variant)) : ContextSize{};
  DeviceLimits limits{.limit = options.limit,
                      .capacity = std::max<Bytes>(0, gpu.memory - gpu.context.bytes - nccl.bytes),
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
                 .steps = options.steps,
                 .nccl = nccl};
}

Lowered LowerFor(const Setting& setting, std::int64_t batch, Estimate estimate) {
  return Lower(setting.step, setting.variant, setting.gpu,
               {.batch = batch,
                .steps = setting.steps,
                .torch = setting.torch,
                .calibration = setting.calibration,
                .estimate = estimate});
}

Peaks Run(const Lowered& lowered, const Setting& setting, const DeviceLimits& limits,
          Driver& driver) {
  Replayer replayer(lowered.workload, {.rules = setting.rules, .limits = limits}, driver);
  Peaks peaks;
  peaks.limits = limits;
  const std::vector<Request>& requests = lowered.workload.requests;
  RefusedCalls refused_calls;
  std::pair<int, RefusedCalls> in_step;  // a repeated step counts like the first of its kind
  for (std::size_t i = 0; i < requests.size(); ++i) {
    replayer.Run(i);
    const AllocatorCounters& counters = replayer.allocator().counters();
    if (counters.peak_allocated > peaks.allocated) {
      peaks.allocated = counters.peak_allocated;
      peaks.request = i;
    }
    const auto step = static_cast<std::size_t>(std::max(0, lowered.moments[i].step));
    std::vector<Bytes>& after_step = peaks.reserved_after_step;
    // A step that asks for nothing ends where the one before did.
    if (after_step.size() <= step) {
      after_step.resize(step + 1, after_step.empty() ? 0 : after_step.back());
    }
    after_step[step] = counters.peak_reserved;
    if (requests[i].kind != Request::Kind::kBorrow) continue;
    const std::int64_t refused = replayer.result().done_without;
    const Moment& moment = lowered.moments[i];
    if (in_step.first != moment.step) in_step = {moment.step, {}};
    if (refused > peaks.refused) {
      int& most = refused_calls[moment.call];
      most = std::max(most, ++in_step.second[moment.call]);
    }
    peaks.refused = refused;
  }
  const ReplayResult result = replayer.result();
  peaks.reserved = result.counters.peak_reserved;
  peaks.fits = result.fits;
  peaks.refused_calls = InLastStep(setting.variant, refused_calls);
  return peaks;
}

Peaks Run(const Lowered& lowered, const Setting& setting, const DeviceLimits& limits) {
  const Timeline nothing_recorded;
  AssumedDriver driver(nothing_recorded);
  return Run(lowered, setting, limits, driver);
}

Peaks Decide(const Peaks& unlimited, const Lowered& lowered, const Setting& setting) {
  if (unlimited.reserved <= setting.Room() && !setting.CollectsGarbage()) return unlimited;
  return Decide(lowered, setting);
}

// Where workspaces are refused, cuDNN takes others that are not known but take something too: then
// a percent of the room has to be left for them (docs/prediction.md).
Peaks Decide(const Lowered& lowered, const Setting& setting) {
  const Peaks peaks = Run(lowered, setting, setting.limits);
  if (!peaks.fits || peaks.refused == 0) return peaks;
  return Run(lowered, setting, WithMargin(setting.limits));
}

bool SurelyFits(const Peaks& decided, const Lowered& upper, const Setting& setting) {
  DeviceLimits limits = setting.limits;
  limits.capacity = std::max<Bytes>(0, setting.gpu.memory - setting.Outside().high);
  limits = WithMargin(limits);
  const auto fits = [](const Peaks& peaks) { return peaks.fits && peaks.refused == 0; };
  if (!fits(decided) || !fits(Run(upper, setting, limits))) return false;
  const std::uint64_t shuffles = setting.AddressesMatter() ? kShuffles : 0;
  for (std::uint64_t shuffle = 1; shuffle <= shuffles; ++shuffle) {
    ShuffledDriver driver = ShuffleOf(shuffle);
    if (!fits(Run(upper, setting, limits, driver))) return false;
  }
  return true;
}

}  // namespace plimsoll

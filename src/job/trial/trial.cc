#include "job/trial/trial.h"

#include <algorithm>
#include <map>

namespace plimsoll {
namespace {

/// How often sizes that are assumed are drawn anew.
int DrawsOf(const Setting& setting) { return HasDrawnSizes(*setting.job) ? kDraws : 0; }

/// A run may differ from what is known by a little, whatever is known: a percent each way.
constexpr double kMargin = 0.01;

/// What may be used so that a percent more still fits.
Bytes WithMargin(Bytes bytes) {
  return static_cast<Bytes>(static_cast<double>(bytes) / (1 + kMargin));
}

DeviceLimits WithMargin(DeviceLimits limits) {
  if (limits.limit) limits.limit = WithMargin(*limits.limit);
  if (limits.capacity) limits.capacity = WithMargin(*limits.capacity);
  return limits;
}

/// What may be used so that a percent less fits.
DeviceLimits WithMoreRoom(DeviceLimits limits) {
  const auto more = [](Bytes bytes) { return bytes + static_cast<Bytes>(kMargin * double(bytes)); };
  if (limits.limit) limits.limit = more(*limits.limit);
  if (limits.capacity) limits.capacity = more(*limits.capacity);
  return limits;
}

Bytes RoomWithin(const DeviceLimits& limits) {
  return std::min(limits.capacity.value_or(limits.total), limits.limit.value_or(limits.total));
}

ShuffledDriver ShuffleOf(std::uint64_t number) { return ShuffledDriver(number * 1000003); }

Range Widened(const Range& range) {
  return {range.low - static_cast<Bytes>(kMargin * double(range.low)), range.best,
          range.high + static_cast<Bytes>(kMargin * double(range.high)) + 1};
}

Range OnDevice(const Range& reserved, const ContextSize& outside) {
  return {reserved.low + outside.low, reserved.best + outside.bytes, reserved.high + outside.high};
}

/// With the ends of the ranges unknown.
Needs BestOf(const Peaks& peaks, const Setting& setting) {
  const auto exactly = [](Bytes bytes) { return Range{bytes, bytes, bytes}; };
  return {.allocated = exactly(peaks.allocated),
          .reserved = exactly(peaks.reserved),
          .device = exactly(peaks.reserved + setting.Outside().bytes)};
}

/// The calls of each captured step, in order, by operator.
using CallsByOperator = std::map<StringId, std::vector<std::uint32_t>>;
std::vector<CallsByOperator> CallsOfSteps(const Variant& variant) {
  std::vector<CallsByOperator> steps;
  for (const JobEvent& event : variant.events) {
    if (event.kind == JobEvent::Kind::kStep) steps.emplace_back();
    if (event.kind != JobEvent::Kind::kCall || steps.empty()) continue;
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

/// More than once where it is of a micro-batch that is repeated.
std::int64_t TimesInAStep(const Variant& variant, std::uint32_t call) {
  bool in_round = false;
  for (const JobEvent& event : variant.events) {
    if (event.kind == JobEvent::Kind::kStep && in_round) break;
    if (event.kind == JobEvent::Kind::kRound && in_round) return 1 + std::int64_t{event.index};
    in_round |= event.kind == JobEvent::Kind::kCall && event.index == call;
  }
  return 1;
}

/// Takes note of a run request by request.
class Observer {
 public:
  Observer(const Lowered& lowered, const Replayer& replayer, Peaks& peaks)
      : lowered_(lowered), replayer_(replayer), peaks_(peaks) {}

  void After(std::size_t i) {
    const AllocatorCounters& counters = replayer_.allocator().counters();
    AddToPart(lowered_.moments[i], i, counters);
    peaks_.settled = std::max(peaks_.settled, counters.reserved);
    if (counters.peak_allocated > peaks_.allocated) {
      peaks_.allocated = counters.peak_allocated;
      peaks_.request = i;
    }
    if (lowered_.moments[i].part == Moment::kSteps) {
      const auto step = static_cast<std::size_t>(std::max(0, lowered_.moments[i].step));
      std::vector<Bytes>& after_step = peaks_.reserved_after_step;
      // A step that asks for nothing ends where the one before did.
      if (after_step.size() <= step) {
        after_step.resize(step + 1, after_step.empty() ? 0 : after_step.back());
      }
      after_step[step] = counters.peak_reserved;
    }
    if (lowered_.workload.requests[i].kind == Request::Kind::kBorrow) Borrowed(lowered_.moments[i]);
  }
  /// What asks for nothing at the end was there too.
  void End(std::size_t parts) {
    if (peaks_.parts.size() < parts) peaks_.parts.resize(parts, before_);
  }
  /// By call, in any step.
  const RefusedCalls& refused_calls() const { return refused_calls_; }

 private:
  void AddToPart(const Moment& moment, std::size_t request, const AllocatorCounters& counters) {
    const std::size_t part = PartPeaks::IndexOf(moment);
    // One that asks for nothing has what was there before.
    if (peaks_.parts.size() <= part) peaks_.parts.resize(part + 1, before_);
    PartPeaks& peaks = peaks_.parts[part];
    const Request& made = lowered_.workload.requests[request];
    // What is borrowed is given back before anybody can look.
    const Bytes borrowed = made.passes() ? made.size : 0;
    const Bytes allocated = std::max(
        counters.allocated + borrowed,
        counters.peak_allocated > peaks_.allocated ? counters.peak_allocated : counters.allocated);
    if (allocated > peaks.allocated) {
      peaks.allocated = allocated;
      peaks.request = request;
    }
    peaks.reserved = std::max(peaks.reserved, counters.reserved);
    before_ = {.allocated = counters.allocated, .reserved = counters.reserved};
  }

  void Borrowed(const Moment& moment) {
    const std::int64_t refused = replayer_.done_without();
    if (step_ != moment.step) {
      step_ = moment.step;
      in_step_.clear();
    }
    if (refused > peaks_.refused) {
      int& most = refused_calls_[moment.call];
      most = std::max(most, ++in_step_[moment.call]);
    }
    peaks_.refused = refused;
  }

  const Lowered& lowered_;
  const Replayer& replayer_;
  Peaks& peaks_;
  RefusedCalls refused_calls_;
  /// After the last request.
  PartPeaks before_;
  /// Those of the step at hand: a repeated step counts like the first of its kind.
  int step_ = 0;
  RefusedCalls in_step_;
};

}  // namespace

Result<Trial> Trial::Of(Setting setting) {
  Trial trial(std::move(setting));
  if (const std::optional<Error> error = AllocatesNothing(trial)) return *error;
  return trial;
}

std::optional<Error> AllocatesNothing(const Trial& trial) {
  if (!trial.lowered().workload.requests.empty()) return std::nullopt;
  return Error{.message = "the step allocates nothing", .file = trial.setting().job->file};
}

Lowered Trial::Lower(Estimate estimate, int draw) const {
  // Each step has other sizes then, and what they leave reserved adds up over some steps.
  const bool needs_more = draw > 0 && setting_.job->sequence.empty() && !setting_.steps_are_given;
  const int steps = needs_more ? std::max(setting_.steps, kDrawnSteps) : setting_.steps;
  Lowered lowered = plimsoll::Lower(*setting_.job, setting_.variant(), setting_.gpu,
                                    {.batch = setting_.batch,
                                     .micro_batches = setting_.micro_batches,
                                     .steps = steps,
                                     .later = setting_.later,
                                     .torch = setting_.torch,
                                     .calibration = setting_.calibration.get(),
                                     .estimate = estimate,
                                     .draw = draw});
  // To make a request takes about as long as to serve two.
  work_ += 2 * static_cast<std::int64_t>(lowered.workload.requests.size());
  return lowered;
}

std::int64_t Trial::WorkToBeSure() const {
  const std::int64_t replays = 2 + (setting_.AddressesMatter() ? std::int64_t{kShuffles} : 0) +
                               3 * std::int64_t{DrawsOf(setting_)};
  return replays * static_cast<std::int64_t>(lowered().workload.requests.size());
}

const Lowered& Trial::lowered() const {
  if (!lowered_) lowered_ = Lower(Estimate::kLikely);
  return *lowered_;
}

const Lowered& Trial::upper() const {
  if (lowered().certain) return lowered();
  if (!upper_) upper_ = Lower(Estimate::kUpper);
  return *upper_;
}

ReplayResult Trial::Replay(const Lowered& lowered, const DeviceLimits& limits,
                           Driver& driver) const {
  Replayer replayer(lowered.workload, {.rules = setting_.rules, .limits = limits}, driver);
  std::size_t run = 0;
  while (replayer.Next()) ++run;
  work_ += static_cast<std::int64_t>(std::max(run, lowered.workload.requests.size()));
  return replayer.result();
}

/// With the addresses that an H200's driver was mostly seen to give.
Peaks Trial::Run(const Lowered& lowered, const DeviceLimits& limits) const {
  const Timeline nothing_recorded;
  AssumedDriver driver(nothing_recorded);
  Replayer replayer(lowered.workload, {.rules = setting_.rules, .limits = limits}, driver);
  Peaks peaks;
  peaks.limits = limits;
  Observer observer(lowered, replayer, peaks);
  std::size_t run = 0;
  std::size_t next = 0;
  for (; const std::optional<std::size_t> i = replayer.Next(); ++run) {
    observer.After(*i);
    next = *i + 1;
    if (replayer.stopped()) peaks.failed = i;
  }
  const std::size_t count = lowered.workload.requests.size();
  work_ += static_cast<std::int64_t>(std::max(run, count));
  // What it does not come to would find what there was.
  for (; next < count; ++next) observer.After(next);
  const ReplayResult result = replayer.result();
  peaks.refused = result.done_without;
  peaks.reserved = result.counters.peak_reserved;
  peaks.fits = result.fits;
  peaks.retries = result.counters.retries;
  const bool to_its_end = setting_.later && lowered.left_out == 0 && !peaks.failed;
  if (to_its_end) observer.End(setting_.variant().later.size() + PartPeaks::kLater);
  peaks.refused_calls = InLastStep(setting_.variant(), observer.refused_calls());
  return peaks;
}

const Peaks& Trial::unlimited() const {
  if (!unlimited_) unlimited_ = Run(lowered(), kUnlimitedDevice);
  return *unlimited_;
}

const Peaks& Trial::decided() const {
  if (!decided_) decided_ = Decide();
  return *decided_;
}

// A job that stays below its limits by itself mostly never meets them. Where workspaces are
// refused, cuDNN takes others that are not known but take something too: then a percent of the room
// has to be left for them (docs/prediction.md).
Peaks Trial::Decide() const {
  if (unlimited_ && unlimited_->reserved <= setting_.Room() && !setting_.MeetsLimitsEarly()) {
    return *unlimited_;
  }
  const Peaks peaks = Run(lowered(), setting_.limits);
  if (!peaks.fits || peaks.refused == 0) return peaks;
  return Run(lowered(), WithMargin(setting_.limits));
}

bool Trial::surely_fits() const {
  if (!surely_fits_) surely_fits_ = FindSurelyFits();
  return *surely_fits_;
}

bool Trial::lower_end_fits() const {
  if (lower_end_fits_) return *lower_end_fits_;
  DeviceLimits limits = setting_.limits;
  if (limits.capacity) *limits.capacity += setting_.Outside().bytes - setting_.Outside().low;
  limits = WithMoreRoom(limits);
  lower_end_fits_ = decided().fits ||
                    (unlimited().allocated <= RoomWithin(limits) && Run(lowered(), limits).fits);
  return *lower_end_fits_;
}

bool Trial::FindSurelyFits() const {
  if (!decided().fits || decided().refused > 0) return false;
  DeviceLimits limits = setting_.limits;
  limits.capacity = std::max<Bytes>(0, setting_.gpu.LeastMemory() - setting_.Outside().high);
  limits = WithMargin(limits);
  const Bytes room = setting_.MeetsLimitsEarly() ? 0 : RoomWithin(limits);
  Bytes usual_peak = 0;
  // What is known to stay below them without limits need not be run within them.
  const auto fits = [&](std::optional<Bytes> without_limits, Driver& driver) {
    if (without_limits && *without_limits <= room) return true;
    const ReplayResult result = Replay(upper(), limits, driver);
    if (usual_peak == 0) usual_peak = result.counters.peak_reserved;
    return result.fits && result.done_without == 0;
  };
  const std::optional<Spread>& known = lowered().certain ? spread_ : upper_spread_;
  std::optional<Bytes> usual;
  if (known) usual = known->usual;
  if (lowered().certain && unlimited_) usual = unlimited_->reserved;
  const Timeline nothing_recorded;
  AssumedDriver usual_driver(nothing_recorded);
  if (usual) usual_peak = *usual;
  if (!fits(usual, usual_driver)) return false;
  // Where segments lie does not double what is reserved.
  if (usual_peak <= room / 2) return true;
  const std::uint64_t shuffles = setting_.AddressesMatter() ? kShuffles : 0;
  for (std::uint64_t shuffle = 1; shuffle <= shuffles; ++shuffle) {
    ShuffledDriver driver = ShuffleOf(shuffle);
    if (!fits(known ? std::optional(known->elsewhere[shuffle - 1]) : std::nullopt, driver)) {
      return false;
    }
  }
  for (int draw = 1; draw <= DrawsOf(setting_); ++draw) {
    if (drawn()[static_cast<std::size_t>(draw - 1)] <= room) continue;
    AssumedDriver driver(nothing_recorded);
    if (!Replay(Lower(Estimate::kLikely, draw), limits, driver).fits) return false;
  }
  return true;
}

Trial::Spread Trial::FindSpread(const Lowered& lowered, Bytes usual) const {
  Spread spread{.usual = usual, .elsewhere = {}};
  const std::uint64_t shuffles = setting_.AddressesMatter() ? kShuffles : 0;
  for (std::uint64_t shuffle = 1; shuffle <= shuffles; ++shuffle) {
    ShuffledDriver driver = ShuffleOf(shuffle);
    spread.elsewhere.push_back(Replay(lowered, kUnlimitedDevice, driver).counters.peak_reserved);
  }
  return spread;
}

const Trial::Spread& Trial::spread() const {
  if (!spread_) spread_ = FindSpread(lowered(), unlimited().reserved);
  return *spread_;
}

const Trial::Spread& Trial::upper_spread() const {
  if (lowered().certain) return spread();
  if (!upper_spread_) upper_spread_ = FindSpread(upper(), upper_unlimited().reserved);
  return *upper_spread_;
}

const std::vector<Bytes>& Trial::drawn() const {
  if (drawn_) return *drawn_;
  drawn_.emplace();
  for (int draw = 1; draw <= DrawsOf(setting_); ++draw) {
    const Lowered other = Lower(Estimate::kLikely, draw);
    const Timeline nothing_recorded;
    AssumedDriver driver(nothing_recorded);
    drawn_->push_back(Replay(other, kUnlimitedDevice, driver).counters.peak_reserved);
  }
  return *drawn_;
}

const Peaks& Trial::upper_unlimited() const {
  if (lowered().certain) return unlimited();
  if (!upper_unlimited_) upper_unlimited_ = Run(upper(), kUnlimitedDevice);
  return *upper_unlimited_;
}

/// What it takes where nothing limits it.
Needs Trial::WithoutLimits() const {
  const auto ends = [](const Spread& spread) {
    Range range{spread.usual, spread.usual, spread.usual};
    for (const Bytes reserved : spread.elsewhere) {
      range.low = std::min(range.low, reserved);
      range.high = std::max(range.high, reserved);
    }
    return range;
  };
  const Peaks& peaks = unlimited();
  Range likely = ends(spread());
  for (const Bytes reserved : drawn()) {
    likely.low = std::min(likely.low, reserved);
    likely.high = std::max(likely.high, reserved);
  }
  // What was not tried may lie as far beyond as half of what was.
  const Bytes beyond = (likely.high - likely.low) / 2;
  const Bytes high = std::max(likely.high + beyond, ends(upper_spread()).high);
  Needs needs;
  needs.allocated = Widened(
      {peaks.allocated, peaks.allocated, std::max(peaks.allocated, upper_unlimited().allocated)});
  needs.reserved = Widened({likely.low, peaks.reserved, high});
  needs.device = OnDevice(needs.reserved, setting_.Outside());
  return needs;
}

/// What it takes within the room, where it fits. Nothing can hold more than there is: if it surely
/// fits, the range ends there.
Needs Trial::WithinRoom(const Needs& unlimited) const {
  const bool surely = surely_fits();
  const auto cut = [&](const Range& range, Bytes best, Bytes end) -> Range {
    return {std::min(range.low, best), best,
            std::max(best, surely ? std::min(range.high, end) : range.high)};
  };
  Needs needs;
  needs.reserved = cut(unlimited.reserved, decided().reserved, setting_.Most());
  needs.allocated = cut(unlimited.allocated, decided().allocated, needs.reserved.high);
  needs.device = OnDevice(needs.reserved, setting_.Outside());
  if (surely) needs.device.high = std::min(needs.device.high, setting_.gpu.memory);
  return needs;
}

TrialResult Trial::Best() const {
  TrialResult result;
  result.unlimited = BestOf(unlimited(), setting_);
  result.needs = BestOf(shown(), setting_);
  result.room = setting_.Room();
  result.most = setting_.Most();
  result.fits = decided().fits;
  result.surely_fits = surely_fits();
  result.retries = decided().retries;
  result.beyond_count = !unlimited().fits;
  result.workspaces_refused = shown().refused;
  if (lowered().searches) result.reserved_without_search = shown().settled;
  for (const auto& [call, count] : shown().refused_calls) {
    result.refused_in_a_step += count * TimesInAStep(setting_.variant(), call);
  }
  const StepDuration duration = DurationOf(setting_, shown().refused_calls);
  result.step_us = duration.us;
  result.step_low_us = duration.low_us;
  result.step_high_us = duration.high_us;
  result.gpu_busy_us = duration.gpu.us;
  result.waited_us = duration.waited_us;
  return result;
}

TrialResult Trial::WithRanges() const {
  // First: whether it surely fits is then known without further replays.
  const Needs unlimited = WithoutLimits();
  TrialResult result = Best();
  result.unlimited = unlimited;
  result.needs = result.fits ? WithinRoom(unlimited) : unlimited;
  result.lower_end_fits = lower_end_fits();
  result.has_ranges = true;
  return result;
}

}  // namespace plimsoll

#include "diagnose/findings/allocator_study.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "allocator/replay/replay.h"
#include "allocator/replay/replay_check.h"
#include "allocator/replay/tune.h"
#include "allocator/replay/verify.h"
#include "base/parallel.h"

namespace plimsoll {
namespace {

std::optional<ReplayResult> Run(const Timeline& timeline, const Verification& verified,
                                const AllocatorSettings& settings, const DeviceLimits& limits) {
  ReplayLog log;
  const ReplayOptions options{.rules = {settings, verified.rules.version},
                              .limits = limits,
                              .keep_earlier_segments = settings == verified.rules.settings,
                              .ask_refused = limits.limit || limits.capacity};
  const ReplayResult result = Replay(timeline, verified.workload, options, &log);
  // A replay that does not add up proves nothing.
  if (CheckReplay(log, result.counters)) return std::nullopt;
  return result;
}

/// What was free when the fatal request failed, if the replay fails there too.
void AddFailure(const Timeline& timeline, const Ledger& ledger, const Verification& verified,
                AllocatorStudy& study) {
  if (!verified.workload.fatal) return;
  const Request& request = verified.workload.requests[*verified.workload.fatal];
  const ReplayOptions options{.rules = verified.rules, .limits = verified.limits};
  AssumedDriver driver(timeline);
  Replayer replayer(verified.workload, options, driver);
  replayer.Run(*verified.workload.fatal);
  if (replayer.result().oom_event != std::optional(request.event)) return;
  study.at_failure = Fragments(replayer, ledger, request);
  const bool small = verified.rules.Round(request.size) <= kSmallRequest;
  for (const LargestFree& f : study.at_failure->largest_free) {
    if (f.pool == request.pool && f.stream == request.stream && f.small == small) {
      study.largest_free = f.size;
    }
  }
}

/// The limit that the replay assumes is the highest that explains the refusals; the least is what
/// the run was seen to hold.
std::optional<LimitRange> RangeOfLimit(const Timeline& timeline, const Ledger& ledger,
                                       const Verification& verified) {
  if (timeline.settings.budget) return std::nullopt;  // it is known
  const std::optional<Bytes> most = verified.limits.limit;
  if (!most || *most <= ledger.peak_reserved) return std::nullopt;
  return LimitRange{.least = ledger.peak_reserved, .most = *most};
}

}  // namespace

std::optional<AllocatorStudy> StudyAllocator(const AnalysedTrace& trace) {
  const Timeline& timeline = trace.timeline;
  const Ledger& ledger = trace.ledger;
  if (!ledger.has_segments || timeline.events.empty()) return std::nullopt;
  const Verification& verified = trace.verified();
  if (!verified.Exact() || !verified.rules.settings.native) return std::nullopt;
  const DeviceLimits unlimited{.total = verified.limits.total};
  const bool limited = verified.limits.limit || verified.limits.capacity;
  const std::optional<LimitRange> range = RangeOfLimit(timeline, ledger, verified);
  DeviceLimits least = verified.limits;
  if (range) least.limit = range->least;
  const auto try_out = [&](const AllocatorSettings& settings) -> std::optional<SettingOutcome> {
    const auto free = Run(timeline, verified, settings, unlimited);
    const auto pressed = limited ? Run(timeline, verified, settings, verified.limits) : free;
    const auto surely = range ? Run(timeline, verified, settings, least) : pressed;
    if (!free || !pressed || !surely) return std::nullopt;
    return SettingOutcome{.conf = FormatSettings(settings),
                          .reserved = free->counters.peak_reserved,
                          .fits = surely->fits,
                          .may_fit = pressed->fits};
  };
  // The recorded settings first, for comparison.
  const std::vector<AllocatorSettings> settings =
      CommonSettings(verified.rules.settings, verified.limits.limit.has_value());
  std::vector<std::optional<SettingOutcome>> outcomes(settings.size());
  ParallelFor(settings.size(), [&](std::size_t i) { outcomes[i] = try_out(settings[i]); });
  if (!outcomes.front()) return std::nullopt;
  AllocatorStudy study{.reserved = outcomes.front()->reserved,
                       .unused = ledger.peak_reserved - ledger.peak_allocated,
                       .fits = outcomes.front()->may_fit,
                       .limit = range};
  for (std::size_t i = 1; i < outcomes.size(); ++i) {
    if (outcomes[i]) study.outcomes.push_back(*outcomes[i]);
  }
  AddFailure(timeline, ledger, verified, study);
  return study;
}

namespace {

/// "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", and what it does to this job.
Remedy RemedyOf(const SettingOutcome& outcome, const AllocatorStudy& study, bool complete) {
  Remedy remedy{.change = outcome.conf.empty() ? "PYTORCH_CUDA_ALLOC_CONF unset"
                                               : "PYTORCH_CUDA_ALLOC_CONF=" + outcome.conf,
                .basis = Basis::kReplayed,
                .lever = Lever::kAllocatorSetting};
  remedy.code = {outcome.conf.empty() ? "unset PYTORCH_CUDA_ALLOC_CONF"
                                      : "export PYTORCH_CUDA_ALLOC_CONF=" + outcome.conf};
  // Both without limits, so that like is compared with like; but a record that a limit pressed
  // never held so much.
  const Bytes saves = std::min(study.reserved - outcome.reserved, std::max<Bytes>(0, study.unused));
  if (outcome.fits && !study.fits) {
    remedy.effect = complete ? Effect::kFits : Effect::kGetsPast;
    remedy.remark = complete
                        ? "with it the job fits, as far as the record goes"
                        : "with it this request succeeds; what comes after it is not recorded, so "
                          "whether the job fits is not known";
    if (saves > 0) remedy.saves = saves;
  } else if (outcome.may_fit && !study.fits) {
    remedy.remark = fmt::format(
        "whether this request then succeeds depends on the limit, which the record shows only to "
        "lie between {} and {}",
        FormatBytes(study.limit->least), FormatBytes(study.limit->most));
    if (saves > 0) remedy.saves = saves;
  } else if (!outcome.may_fit && study.fits) {
    remedy.avoid = true;
    remedy.remark = "with it the job would run out";
  } else {
    remedy.saves = saves;
    remedy.avoid = saves < 0;
    if (remedy.avoid) remedy.remark = "often advised, but this job would hold more";
  }
  if (remedy.avoid) remedy.code.clear();
  return remedy;
}

}  // namespace

std::vector<Remedy> SettingRemedies(const AllocatorStudy& study, bool complete) {
  // Below this share a setting is not worth a line.
  constexpr double kWorthIt = 0.01;
  std::vector<Remedy> remedies;
  for (const SettingOutcome& outcome : study.outcomes) {
    Remedy remedy = RemedyOf(outcome, study, complete);
    const double change = std::abs(double(remedy.saves.value_or(0)));
    const bool decides = outcome.may_fit != study.fits;
    if (decides || change >= kWorthIt * double(study.reserved)) {
      remedies.push_back(std::move(remedy));
    }
  }
  // What helps first, the most first; then what is often advised and would hurt.
  const auto rank = [](const Remedy& r) {
    return std::tuple(r.avoid, r.effect == Effect::kUnknown, -r.saves.value_or(0));
  };
  std::stable_sort(remedies.begin(), remedies.end(),
                   [&](const Remedy& a, const Remedy& b) { return rank(a) < rank(b); });
  return remedies;
}

std::string WhyNoBlock(const AllocatorStudy& study) {
  if (!study.at_failure) return "";
  const Fragmentation& f = *study.at_failure;
  std::string text = fmt::format(
      "the replay gave every whole free segment back to the driver, and the largest free block "
      "left "
      "in the request's pool and stream is {}",
      FormatBytes(study.largest_free));
  const auto add = [&](Bytes bytes, std::string_view what) {
    if (bytes > 0) text += fmt::format("; {} are free {}", FormatBytes(bytes), what);
  };
  add(f[Waste::kOtherStreams], "for other streams only");
  add(f[Waste::kOtherPools], "in memory pools of their own");
  add(f[Waste::kPinned] + f[Waste::kSharedSegments], "but pinned by blocks in use");
  return text;
}

}  // namespace plimsoll

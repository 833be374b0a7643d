#include "diagnose/allocator_study.h"

#include <fmt/format.h>

#include <algorithm>

#include "allocator/replay.h"
#include "allocator/replay_check.h"
#include "allocator/verify.h"
#include "base/parallel.h"

namespace plimsoll {
namespace {

/// What forums and error messages advise.
std::vector<AllocatorSettings> CommonAdvice(const Verification& verified) {
  std::vector<AllocatorSettings> list;
  const AllocatorSettings& recorded = verified.rules.settings;
  const auto add = [&](auto change) {
    AllocatorSettings s;
    change(s);
    if (s != recorded) list.push_back(s);
  };
  add([](AllocatorSettings&) {});
  add([](AllocatorSettings& s) { s.expandable_segments = true; });
  add([](AllocatorSettings& s) { s.max_split_size = 128 * kMiB; });
  add([](AllocatorSettings& s) { s.roundup_power2_divisions.fill(8); });
  // Measures against a limit, and does nothing without one.
  if (verified.limits.limit)
    add([](AllocatorSettings& s) { s.garbage_collection_threshold = 0.8; });
  return list;
}

ReplayResult Run(const Timeline& timeline, const Verification& verified,
                 const AllocatorSettings& settings, const DeviceLimits& limits) {
  ReplayLog log;
  const ReplayOptions options{.rules = {settings, verified.rules.release},
                              .limits = limits,
                              .keep_earlier_segments = settings == verified.rules.settings};
  ReplayResult result = Replay(timeline, verified.workload, options, &log);
  // A replay that does not add up proves nothing.
  if (CheckReplay(log, result.counters)) result.fits = false;
  return result;
}

Fragmentation AtFailure(const Timeline& timeline, const Ledger& ledger,
                        const Verification& verified) {
  const ReplayOptions options{.rules = verified.rules, .limits = verified.limits};
  AssumedDriver driver(timeline);
  Replayer replayer(verified.workload, options, driver);
  replayer.Run(*verified.workload.fatal);
  return Fragments(replayer, ledger, verified.workload.requests[*verified.workload.fatal]);
}

}  // namespace

std::optional<AllocatorStudy> StudyAllocator(const Timeline& timeline, const Ledger& ledger) {
  if (!ledger.has_segments || timeline.events.empty()) return std::nullopt;
  const Verification verified = Verify(timeline, ledger, {});
  if (!verified.Exact() || !verified.rules.settings.native) return std::nullopt;
  const DeviceLimits unlimited{.total = verified.limits.total};
  const bool limited = verified.limits.limit || verified.limits.capacity;
  const auto try_out = [&](const AllocatorSettings& settings) {
    const ReplayResult free = Run(timeline, verified, settings, unlimited);
    return SettingOutcome{
        .conf = FormatSettings(settings),
        .reserved = free.counters.peak_reserved,
        .fits = limited ? Run(timeline, verified, settings, verified.limits).fits : free.fits};
  };
  // The recorded settings first, for comparison.
  std::vector<AllocatorSettings> settings = CommonAdvice(verified);
  settings.insert(settings.begin(), verified.rules.settings);
  AllocatorStudy study;
  study.outcomes.resize(settings.size());
  ParallelFor(settings.size(), [&](std::size_t i) { study.outcomes[i] = try_out(settings[i]); });
  study.reserved = study.outcomes.front().reserved;
  study.fits = study.outcomes.front().fits;
  study.outcomes.erase(study.outcomes.begin());
  if (verified.workload.fatal) {
    study.at_failure = AtFailure(timeline, ledger, verified);
    study.stream = verified.workload.requests[*verified.workload.fatal].stream;
  }
  return study;
}

std::vector<Remedy> SettingRemedies(const AllocatorStudy& study) {
  std::vector<SettingOutcome> outcomes = study.outcomes;
  std::stable_sort(outcomes.begin(), outcomes.end(),
                   [](const SettingOutcome& a, const SettingOutcome& b) {
                     if (a.fits != b.fits) return a.fits;
                     return a.reserved < b.reserved;
                   });
  // Below this share a setting is not worth a line.
  constexpr double kWorthIt = 0.01;
  std::vector<Remedy> remedies;
  for (const SettingOutcome& outcome : outcomes) {
    const Bytes saves = study.reserved - outcome.reserved;
    const bool rescues = outcome.fits && !study.fits;
    const bool worse = double(saves) < -kWorthIt * double(study.reserved);
    if (!rescues && double(saves) < kWorthIt * double(study.reserved) && !worse) continue;
    const std::string variable = outcome.conf.empty() ? "PYTORCH_CUDA_ALLOC_CONF unset"
                                                      : "PYTORCH_CUDA_ALLOC_CONF=" + outcome.conf;
    Remedy remedy{.change = variable, .saves = saves, .costs = "", .basis = "replayed"};
    if (rescues) {
      remedy.costs = "with it the job fits, as far as the record goes";
      if (saves < 0) {
        // It gives back more when pressed, and holds more when not.
        remedy.saves.reset();
        remedy.costs +=
            fmt::format(" (replayed); where nothing presses it holds {} more", FormatBytes(-saves));
      }
    } else if (worse) {
      remedy.change = "not " + variable;
      remedy.costs = "often advised, but this job would hold more";
    }
    remedies.push_back(std::move(remedy));
  }
  return remedies;
}

std::string WhyNoBlock(const AllocatorStudy& study) {
  if (!study.at_failure) return "";
  Bytes largest = 0;
  for (const LargestFree& f : study.at_failure->largest_free) {
    if (f.pool == 0 && f.stream == study.stream && !f.small) largest = f.size;
  }
  const Fragmentation& f = *study.at_failure;
  std::string text = fmt::format(
      "replayed: after everything that can be given back was, the largest "
      "free block for its pool and stream is {}",
      FormatBytes(largest));
  if (f[Waste::kOtherStreams] > 0) {
    text +=
        fmt::format("; {} are free for other streams only", FormatBytes(f[Waste::kOtherStreams]));
  }
  if (f[Waste::kOtherPools] > 0) {
    text += fmt::format("; {} lie free in memory pools of their own",
                        FormatBytes(f[Waste::kOtherPools]));
  }
  if (f[Waste::kPinned] + f[Waste::kSharedSegments] > 0) {
    text += fmt::format("; {} are free but pinned by blocks in use",
                        FormatBytes(f[Waste::kPinned] + f[Waste::kSharedSegments]));
  }
  return text;
}

}  // namespace plimsoll

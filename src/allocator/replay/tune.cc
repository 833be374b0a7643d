#include "allocator/replay/tune.h"

#include <algorithm>
#include <atomic>

#include "allocator/replay/replay_check.h"
#include "base/parallel.h"

namespace plimsoll {
namespace {

/// How many keys differ from the defaults: of two that are equally good the simpler is better.
int Complexity(const AllocatorSettings& s) {
  const AllocatorSettings defaults;
  return int{s.expandable_segments} + int{s.max_split_size != kUnlimited} +
         int{s.garbage_collection_threshold > 0} +
         int{s.roundup_power2_divisions != defaults.roundup_power2_divisions} +
         int{s.large_segment_size != kLargeSegment} +
         int{s.max_non_split_rounding != s.large_segment_size};
}

/// Fits before does not; then fewest retries, each of which waits for the whole GPU; then least
/// reserved; then fewest calls to the driver; then simplest. Of two that do not fit, the one that
/// came further.
bool Better(const TuneRow& a, const TuneRow& b) {
  // A replay that does not add up proves nothing.
  if (a.fault.has_value() != b.fault.has_value()) return !a.fault;
  if (a.replayed.fits != b.replayed.fits) return a.replayed.fits;
  if (!a.replayed.fits && a.replayed.oom_event != b.replayed.oom_event) {
    return a.replayed.oom_event > b.replayed.oom_event;
  }
  if (a.replayed.counters.retries != b.replayed.counters.retries) {
    return a.replayed.counters.retries < b.replayed.counters.retries;
  }
  const Bytes x = a.replayed.counters.peak_reserved;
  const Bytes y = b.replayed.counters.peak_reserved;
  if (x != y) return x < y;
  if (a.DriverCalls() != b.DriverCalls()) return a.DriverCalls() < b.DriverCalls();
  return Complexity(a.settings) < Complexity(b.settings);
}

/// The simplest that is hardly worse than the best.
std::size_t Simplest(const std::vector<TuneRow>& rows, std::size_t best) {
  constexpr double kHardlyWorse = 0.01;
  const ReplayResult& least = rows[best].replayed;
  std::size_t simplest = best;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const ReplayResult& r = rows[i].replayed;
    const double more = double(r.counters.peak_reserved - least.counters.peak_reserved);
    const bool as_good = !rows[i].fault && r.fits == least.fits &&
                         r.counters.retries <= least.counters.retries &&
                         more <= kHardlyWorse * double(least.counters.peak_reserved);
    if (as_good && Complexity(rows[i].settings) < Complexity(rows[simplest].settings)) simplest = i;
  }
  return simplest;
}

AllocatorSettings With(AllocatorSettings s, bool expandable, Bytes max_split, int divisions,
                       double collect) {
  s.expandable_segments = expandable;
  s.max_split_size = max_split;
  s.roundup_power2_divisions.fill(divisions);
  s.garbage_collection_threshold = collect;
  return s;
}

}  // namespace

std::vector<AllocatorSettings> TuneCandidates(const AllocatorSettings& recorded,
                                              const VersionRules& version, bool limited) {
  std::vector<AllocatorSettings> list = {recorded};
  const auto add = [&](const AllocatorSettings& s) {
    if (std::find(list.begin(), list.end(), s) == list.end()) list.push_back(s);
  };
  add(AllocatorSettings{});
  // Garbage collection measures against a limit and does nothing without one.
  std::vector<double> thresholds = {0};
  if (limited) thresholds.insert(thresholds.end(), {0.6, 0.8});
  for (const bool expandable : {false, true}) {
    for (const int divisions : {0, 2, 4, 8, 16}) {
      for (const Bytes split :
           {kUnlimited, 32 * kMiB, 64 * kMiB, 128 * kMiB, 256 * kMiB, 512 * kMiB}) {
        for (const double threshold : thresholds) {
          // Expandable segments are neither collected nor given back for being oversize.
          if (expandable && (split != kUnlimited || threshold > 0)) continue;
          if (threshold > 0 && divisions != 0) continue;
          add(With({}, expandable, split, divisions, threshold));
        }
      }
    }
  }
  if (version.has_large_segment_size) {
    for (const Bytes segment : {12 * kMiB, 32 * kMiB, 40 * kMiB, 64 * kMiB, 128 * kMiB}) {
      for (const bool expandable : {false, true}) {
        for (const int divisions : {0, 4, 8}) {
          AllocatorSettings s = With({}, expandable, kUnlimited, divisions, 0);
          s.large_segment_size = s.max_non_split_rounding = segment;
          add(s);
        }
      }
    }
  }
  return list;
}

std::vector<AllocatorSettings> CommonSettings(const AllocatorSettings& recorded, bool limited) {
  std::vector<AllocatorSettings> list = {recorded};
  const auto add = [&](const AllocatorSettings& s) {
    if (std::find(list.begin(), list.end(), s) == list.end()) list.push_back(s);
  };
  add(AllocatorSettings{});
  add(With({}, true, kUnlimited, 0, 0));
  add(With({}, false, 128 * kMiB, 0, 0));
  add(With({}, false, kUnlimited, 8, 0));
  // Measures against a limit, and does nothing without one.
  if (limited) add(With({}, false, kUnlimited, 0, 0.8));
  return list;
}

TuneResult Tune(const Timeline& timeline, const Verification& verified,
                const TuneOptions& options) {
  const AllocatorSettings& recorded = verified.rules.settings;
  const bool limited = options.limits.limit.has_value();
  const std::vector<AllocatorSettings> candidates =
      options.common_only ? CommonSettings(recorded, limited)
                          : TuneCandidates(recorded, options.version, limited);
  TuneResult result;
  result.rows.resize(candidates.size());
  std::atomic<std::size_t> done = 0;
  ParallelFor(candidates.size(), [&](std::size_t i) {
    const ReplayOptions replay{.rules = {candidates[i], options.version},
                               .limits = options.limits,
                               .keep_earlier_segments = candidates[i] == verified.rules.settings};
    ReplayLog log;
    TuneRow& row = result.rows[i];
    row.settings = candidates[i];
    row.replayed = Replay(timeline, verified.workload, replay, &log);
    row.fault = CheckReplay(log, row.replayed.counters);
    ++done;
    if (options.progress) options.progress(done, candidates.size());
  });
  std::stable_sort(result.rows.begin() + 1, result.rows.end(), Better);
  for (std::size_t i = 0; i < result.rows.size(); ++i) {
    if (result.rows[i].settings == AllocatorSettings{}) result.defaults = i;
    if (Better(result.rows[i], result.rows[result.best])) result.best = i;
  }
  result.simplest = Simplest(result.rows, result.best);
  return result;
}

}  // namespace plimsoll

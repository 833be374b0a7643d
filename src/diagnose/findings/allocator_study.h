// The settings that people are told to try, tried: each is replayed on the recorded job. So advice
// comes with its effect, and common advice that would make this job worse is named as such.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "allocator/replay/fragmentation.h"
#include "answer/finding.h"
#include "diagnose/attribution/analysed_trace.h"

namespace plimsoll {

struct SettingOutcome {
  std::string conf;
  /// What it would hold at most if nothing limited it. Requests that the record refused and
  /// survived (workspaces) are left out, so that settings are compared over the same requests.
  Bytes reserved = 0;
  /// Within every limit that the recorded run may have had.
  bool fits = false;
  /// Within the highest of them; whether within the others is not known.
  bool may_fit = false;
};

/// A record does not hold the limit on its process: it lies between what was held and what was
/// refused.
struct LimitRange {
  Bytes least = 0;
  Bytes most = 0;
};

struct AllocatorStudy {
  /// The same of the recorded settings.
  Bytes reserved = 0;
  /// What the recorded run held at its peaks and did not use: no setting saves more.
  Bytes unused = 0;
  /// Whether the recorded run fits within its limits.
  bool fits = true;
  /// Where a limit was found out, and not given.
  std::optional<LimitRange> limit = {};
  std::vector<SettingOutcome> outcomes;
  /// What was free when the fatal request failed.
  std::optional<Fragmentation> at_failure = {};
  /// Of the pool and stream of that request.
  Bytes largest_free = 0;
};

/// Nothing where the model does not decide as the record did, or the record is no snapshot.
std::optional<AllocatorStudy> StudyAllocator(const AnalysedTrace& trace);

/// The settings that help, best first, and then those that are often advised and would hurt here.
/// `complete`: the record holds a whole step, so that a job which gets to its end may be said to
/// fit.
std::vector<Remedy> SettingRemedies(const AllocatorStudy& study, bool complete);

/// "largest free block for it: 12.00 MiB; 1.20 GiB are free for other streams"
std::string WhyNoBlock(const AllocatorStudy& study);

}  // namespace plimsoll

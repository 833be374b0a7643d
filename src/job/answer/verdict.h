// Whether a job fits: yes, no, or what keeps it unknown. Every command that says "fits" asks here.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "job/answer/predict.h"
#include "job/answer/rank_set.h"

namespace plimsoll {

enum class FitDecision : std::uint8_t {
  /// The upper end of the range fits, and every part of the job was followed.
  kFits,
  /// The lower end does not fit, or the job ends for certain in a later step.
  kDoesNotFit,
  kUnknown,
};

/// "fits", "does_not_fit", "unknown"
std::string_view DecisionName(FitDecision decision);

struct FitVerdict {
  FitDecision decision = FitDecision::kUnknown;
  /// If it is unknown: the parts that were not followed, then the figure that decides.
  std::vector<NotFollowed> unknown = {};
};

FitVerdict VerdictOf(const Prediction& prediction);
/// The decision alone, of all ranks.
FitDecision DecisionOf(const RankTrials& trials);

}  // namespace plimsoll

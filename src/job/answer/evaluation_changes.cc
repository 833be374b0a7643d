#include "job/answer/evaluation_changes.h"

#include <memory>
#include <utility>

#include "job/transforms/evaluation.h"

namespace plimsoll {
namespace {

constexpr int kShares = 4;

/// Whether an evaluation takes more than the steps before it: what it keeps may be there in later
/// ones, too.
bool EvaluationIsLargest(const Trial& trial) {
  const std::vector<PartPeaks>& parts = trial.shown().parts;
  const std::vector<Part>& later = trial.setting().variant().later;
  for (std::size_t i = PartPeaks::kLater; i < parts.size(); ++i) {
    const bool evaluates = later[i - PartPeaks::kLater].stage == Stage::kEvaluation;
    if (evaluates && parts[i].allocated > parts[PartPeaks::kSteps].allocated) return true;
  }
  return false;
}

TrialResult With(const Setting& setting, Variant variant) {
  auto job = std::make_shared<Job>(CopyOf(*setting.job, setting.precision));
  job->variants[0] = std::move(variant);
  Setting other = setting.WithStep(std::move(job));
  other.precision = 0;
  return Trial(std::move(other)).Best();
}

}  // namespace

std::vector<EvaluationChange> FindEvaluationChanges(const Trial& trial) {
  const Setting& setting = trial.setting();
  const Variant& variant = setting.variant();
  if (variant.later.empty() || !EvaluationIsLargest(trial)) return {};
  std::vector<EvaluationChange> changes;
  const auto add = [&](EvaluationChange::Kind kind, Variant changed) {
    changes.push_back({.kind = kind, .trial = With(setting, std::move(changed))});
  };
  using Kind = EvaluationChange::Kind;
  if (EvaluationHasGraph(variant)) add(Kind::kNoGrad, EvaluateWithoutGraph(variant));
  if (EvaluationKeepsOutputs(variant)) add(Kind::kOnHost, KeepOutputsOnHost(variant));
  if (EvaluationFollowsBatch(*setting.job, variant) && setting.batch >= kShares) {
    add(Kind::kSmaller, EvaluateInShares(variant, kShares));
  }
  // What does not help is no change to make.
  const Bytes now = trial.shown().reserved;
  std::erase_if(changes, [&](const EvaluationChange& change) {
    return change.trial.needs.reserved.best >= now;
  });
  return changes;
}

}  // namespace plimsoll

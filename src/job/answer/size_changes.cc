#include "job/answer/size_changes.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "job/calls/arithmetic.h"
#include "job/file/at_length.h"

namespace plimsoll {
namespace {

constexpr std::int64_t kMultiple = 64;

using Steps = std::vector<SequenceStep>;

TrialResult WithSteps(const Setting& setting, Steps steps) {
  auto job = std::make_shared<Job>(CopyOf(*setting.job, setting.precision));
  job->sequence = std::move(steps);
  Setting other = setting.WithStep(std::move(job));
  other.precision = 0;
  return Trial(std::move(other)).Best();
}

/// Those that are known by their sizes alone have no point any more.
template <typename Change>
Steps ChangedSteps(const Steps& steps, const Change& change) {
  Steps changed;
  for (const SequenceStep& step : steps) {
    Extent extent = step.extent;
    for (std::size_t d = 1; d < extent.size(); ++d) extent[d] = change(d, extent[d]);
    changed.push_back(extent == step.extent ? step : SequenceStep{.extent = std::move(extent)});
  }
  return changed;
}

/// How much a step is given.
double WeightOf(const SequenceStep& step) {
  double weight = 1;
  for (const std::int64_t size : step.extent) weight *= static_cast<double>(size);
  return weight;
}

/// Whether sizes that were not captured can be told from those that were.
bool IsKnownElsewhere(const Job& job) {
  if (job.forms->dimensions().back() == "step") return false;
  for (FormId form = 0; form < job.forms->size(); ++form) {
    if (!job.forms->IsExplained(form)) return false;
  }
  return true;
}

}  // namespace

std::vector<SizeChange> FindSizeChanges(const Trial& trial) {
  const Setting& setting = trial.setting();
  const Steps& steps = setting.job->sequence;
  if (steps.empty()) return {};
  std::vector<SizeChange> changes;
  if (!setting.rules.settings.expandable_segments) {
    Setting expandable = setting;
    expandable.rules.settings.expandable_segments = true;
    changes.push_back(
        {.kind = SizeChange::Kind::kExpandable, .trial = Trial(std::move(expandable)).Best()});
  }
  Steps heaviest = steps;
  std::ranges::stable_sort(heaviest, std::greater<>(), WeightOf);
  changes.push_back(
      {.kind = SizeChange::Kind::kHeaviestFirst, .trial = WithSteps(setting, std::move(heaviest))});
  if (!IsKnownElsewhere(*setting.job)) return changes;
  Extent largest = steps.front().extent;
  for (const SequenceStep& step : steps) {
    for (std::size_t d = 0; d < largest.size(); ++d) {
      largest[d] = std::max(largest[d], step.extent[d]);
    }
  }
  // A multiple above the largest that there is would be more than anyone is given.
  const auto up = [&](std::size_t d, std::int64_t size) {
    return std::min(RoundUp(size, kMultiple), largest[d]);
  };
  changes.push_back({.kind = SizeChange::Kind::kMultiples,
                     .multiple = kMultiple,
                     .trial = WithSteps(setting, ChangedSteps(steps, up))});
  const auto most = [&](std::size_t d, std::int64_t) { return largest[d]; };
  changes.push_back(
      {.kind = SizeChange::Kind::kLargest, .trial = WithSteps(setting, ChangedSteps(steps, most))});
  return changes;
}

}  // namespace plimsoll

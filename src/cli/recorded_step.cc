#include "cli/recorded_step.h"

#include <algorithm>

#include "diagnose/attribution.h"
#include "diagnose/phases.h"
#include "diagnose/stack_traits.h"
#include "readers/registry.h"
#include "step/from_traces.h"

namespace plimsoll {
namespace {

/// A recorded run and what it refers to.
struct ReadRun {
  Recording recording;
  const Timeline* timeline = nullptr;
  Ledger ledger;
  RecordedRun run;
};

Purpose PurposeOf(Category category, Reason reason) {
  if (reason == Reason::kWorkspace) return Purpose::kWorkspaces;
  switch (category) {
    case Category::kParameters:
      return Purpose::kParameters;
    case Category::kGradients:
      return Purpose::kGradients;
    case Category::kOptimizerState:
      return Purpose::kOptimizerState;
    case Category::kActivations:
      return Purpose::kActivations;
    case Category::kInputs:
      return Purpose::kInputs;
    default:
      return Purpose::kTemporaries;
  }
}

/// The device with most events.
const Timeline* Busiest(const Recording& recording) {
  const auto busiest = std::max_element(
      recording.timelines.begin(), recording.timelines.end(),
      [](const Timeline& a, const Timeline& b) { return a.events.size() < b.events.size(); });
  return busiest == recording.timelines.end() ? nullptr : &*busiest;
}

/// Fills `read`, in place: the run refers to its parts.
std::optional<Error> Read(const std::string& file, std::int64_t batch, ReadRun& read) {
  Result<Recording> recording = ReadFile(file);
  if (!recording) return recording.error();
  read.recording = std::move(*recording);
  read.timeline = Busiest(read.recording);
  if (read.timeline == nullptr || read.timeline->events.empty()) {
    return Error{.message = "it holds no allocator events",
                 .file = file,
                 .hint = "docs/recording.md tells how to record a memory snapshot"};
  }
  read.ledger = Follow(*read.timeline);
  const StackAnalysis stacks(*read.timeline);
  const Phases phases(*read.timeline, read.ledger, stacks);
  const Attribution attribution = Attribute(phases);
  read.run = {.file = file, .timeline = read.timeline, .ledger = &read.ledger, .batch = batch};
  for (std::size_t i = 0; i < read.ledger.allocations.size(); ++i) {
    read.run.where.push_back(stacks.WhereOf(read.ledger.allocations[i].stack));
    read.run.purpose.push_back(PurposeOf(attribution.category[i], attribution.reason[i]));
  }
  return std::nullopt;
}

}  // namespace

Result<Step> ReadRecordedStep(const std::string& small_file, const std::string& large_file,
                              std::pair<std::int64_t, std::int64_t> batches) {
  ReadRun small;
  ReadRun large;
  if (auto error = Read(small_file, batches.first, small)) return *error;
  if (auto error = Read(large_file, batches.second, large)) return *error;
  return StepFromTraces(small.run, large.run);
}

}  // namespace plimsoll

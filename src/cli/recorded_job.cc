#include "cli/recorded_job.h"

#include <algorithm>
#include <memory>

#include "diagnose/attribution/analysed_trace.h"
#include "job/file/from_traces.h"
#include "readers/registry.h"

namespace plimsoll {
namespace {

/// A recorded run and what it refers to.
struct RecordedRunParts {
  Recording recording;
  std::unique_ptr<const AnalysedTrace> trace;
  RecordedRun run;
};

/// A step tells what a library keeps from what is dropped at once; a record can only guess.
Category CategoryInStep(Category category, Reason reason) {
  if (reason == Reason::kWorkspace) return Category::kWorkspaces;
  const bool unknown = category == Category::kKept || category == Category::kUnattributed;
  return unknown ? Category::kTemporaries : category;
}

/// The device with most events.
const Timeline* Busiest(const Recording& recording) {
  const auto busiest = std::max_element(
      recording.timelines.begin(), recording.timelines.end(),
      [](const Timeline& a, const Timeline& b) { return a.events.size() < b.events.size(); });
  return busiest == recording.timelines.end() ? nullptr : &*busiest;
}

/// Fills `read`, in place: the run refers to its parts.
std::optional<Error> Read(const std::string& file, std::int64_t batch, RecordedRunParts& read) {
  Result<Recording> recording = ReadFile(file);
  if (!recording) return recording.error();
  read.recording = std::move(*recording);
  const Timeline* timeline = Busiest(read.recording);
  if (timeline == nullptr || timeline->events.empty()) {
    return Error{.message = "it holds no allocator events",
                 .file = file,
                 .hint = "docs/recording.md tells how to record a memory snapshot"};
  }
  read.trace = std::make_unique<const AnalysedTrace>(*timeline);
  const Ledger& ledger = read.trace->ledger;
  const Attribution& attribution = read.trace->attribution;
  read.run = {.file = file, .timeline = timeline, .ledger = &ledger, .batch = batch};
  for (std::size_t i = 0; i < ledger.allocations.size(); ++i) {
    read.run.where.push_back(read.trace->stacks.WhereOf(ledger.allocations[i].stack));
    read.run.category.push_back(CategoryInStep(attribution.category[i], attribution.reason[i]));
  }
  return std::nullopt;
}

}  // namespace

Result<Job> ReadRecordedJob(const std::string& small_file, const std::string& large_file,
                            std::pair<std::int64_t, std::int64_t> batches) {
  RecordedRunParts small;
  RecordedRunParts large;
  if (auto error = Read(small_file, batches.first, small)) return *error;
  if (auto error = Read(large_file, batches.second, large)) return *error;
  return JobFromTraces(small.run, large.run);
}

}  // namespace plimsoll

#include "cli/recorded_job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <string_view>

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
std::optional<Error> Read(const std::string& file, const Extent& at, RecordedRunParts& read) {
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
  read.run = {.file = file,
              .timeline = timeline,
              .ledger = &ledger,
              .batch = at[0],
              .length = at.size() > 1 ? at[1] : 0};
  for (std::size_t i = 0; i < ledger.allocations.size(); ++i) {
    read.run.where.push_back(read.trace->stacks.WhereOf(ledger.allocations[i].stack));
    read.run.category.push_back(CategoryInStep(attribution.category[i], attribution.reason[i]));
  }
  return std::nullopt;
}

/// "4x512" as {4, 512}; nothing where it is no point.
std::optional<Extent> PointOf(std::string_view text) {
  Extent point(2);
  const char* const end = text.data() + text.size();
  const auto batch = std::from_chars(text.data(), end, point[0]);
  if (batch.ec != std::errc() || batch.ptr == end || *batch.ptr != 'x') return std::nullopt;
  const auto length = std::from_chars(batch.ptr + 1, end, point[1]);
  if (length.ec != std::errc() || length.ptr != end) return std::nullopt;
  const auto beyond = [](std::int64_t n) { return n < 1 || n > Forms::kLargestExtent; };
  if (std::ranges::any_of(point, beyond)) return std::nullopt;
  return point;
}

std::string PointText(const Extent& point) { return fmt::format("{}x{}", point[0], point[1]); }

}  // namespace

Result<Job> ReadRecordedJob(const std::string& small_file, const std::string& large_file,
                            std::pair<std::int64_t, std::int64_t> batches) {
  RecordedRunParts small;
  RecordedRunParts large;
  if (auto error = Read(small_file, {batches.first}, small)) return *error;
  if (auto error = Read(large_file, {batches.second}, large)) return *error;
  return JobFromTraces(small.run, large.run);
}

Result<Job> ReadRecordedJob(const std::vector<std::string>& files,
                            const std::vector<Extent>& points) {
  std::vector<RecordedRunParts> parts(files.size());
  std::vector<RecordedRun> runs;
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (auto error = Read(files[i], points[i], parts[i])) return *error;
    runs.push_back(parts[i].run);
  }
  return JobFromTraces(runs);
}

std::optional<Error> ReadPoints(const std::string& text, std::vector<Extent>& to) {
  to.clear();
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view word = std::string_view(text).substr(begin, end - begin);
    const std::optional<Extent> point = PointOf(word);
    if (!point) {
      return Error{.message = fmt::format("'{}' is no point of batch and length", word),
                   .hint = "give batch x length of each snapshot, such as 2x256,4x256,2x512"};
    }
    if (std::ranges::find(to, *point) != to.end()) {
      return Error{.message = fmt::format("{} is given twice", PointText(*point)),
                   .hint = "give one snapshot for each point"};
    }
    to.push_back(*point);
    begin = end + 1;
  }
  return std::nullopt;
}

std::string PointsText(const std::vector<Extent>& points) {
  std::vector<std::string> words;
  for (const Extent& point : points) words.push_back(PointText(point));
  return fmt::format("{}", fmt::join(words, ","));
}

}  // namespace plimsoll

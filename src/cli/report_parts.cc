#include "cli/report_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <new>

#include "allocator/settings/rules.h"
#include "base/parallel.h"
#include "diagnose/explain.h"
#include "diagnose/recorded_history.h"
#include "diagnose/what_if.h"
#include "readers/registry.h"
#include "report/history_pack.h"
#include "timeline/redact.h"

namespace plimsoll {
namespace {

std::optional<TuneReport> WhatIf(const Recording& recording, const AnalysedTrace& trace) {
  const WhatIfOptions options{.common_only = true};
  const Result<ReplayableJob> job = PrepareJob(recording, trace, options);
  if (!job) return std::nullopt;  // A record that cannot be replayed has its other views.
  return TuneJob(*job, options, {});
}

void AddRuns(const Recording& recording, const AnalysedRecording& analysed,
             const PartOptions& options, ReportPart& part) {
  for (const auto& trace : analysed.traces) {
    if (!options.page) {
      part.histories.push_back(RecordedHistory(*trace));
      continue;
    }
    const Timeline& timeline = trace->timeline;
    PageRun& run = part.runs.emplace_back(
        PageRun{.file = recording.file,
                .device = timeline.device,
                .settings = FormatSettings(AllocatorRules::From(timeline.settings).settings)});
    run.history = PackHistory(RecordedHistory(*trace));
    if (options.replay) run.what_if = WhatIf(recording, *trace);
  }
}

Result<ReportPart> ReadPart(const std::string& path, std::size_t number,
                            const PartOptions& options) try {
  Result<Recording> recording = ReadFile(path);
  if (!recording) return recording.error();
  options.progress();
  if (options.salt) RedactFileNames(*recording, *options.salt);
  const AnalysedRecording analysed = AnalyseRecording(*recording);
  ExplainOptions explain;
  if (options.every_holder) explain.most_holders = std::numeric_limits<std::size_t>::max();
  Result<Explanation> explanation = ExplainRecording(analysed, explain);
  if (!explanation) return explanation.error();
  options.progress();
  ReportPart part{.explanation = std::move(*explanation), .runs = {}, .histories = {}};
  // Not before, since it tells the rank.
  if (options.salt) recording->file = RedactedName(number);
  for (RankReport& rank : part.explanation.ranks) rank.file = recording->file;
  AddRuns(*recording, analysed, options, part);
  options.progress();
  return part;
} catch (const std::bad_alloc&) {
  return Error{.message = "there is not enough memory to read it", .file = path};
}

}  // namespace

std::string RedactedName(std::size_t number) { return fmt::format("file {}", number + 1); }

std::vector<Result<ReportPart>> ReadParts(const std::vector<std::string>& files,
                                          const PartOptions& options) {
  std::vector<Result<ReportPart>> parts(files.size(), ReportPart{});
  ParallelFor(files.size(), [&](std::size_t i) { parts[i] = ReadPart(files[i], i, options); });
  return parts;
}

std::vector<ExportedRun> ExportedRuns(const std::vector<ReportPart>& parts) {
  std::vector<ExportedRun> runs;
  for (const ReportPart& part : parts) {
    auto next = part.histories.begin();
    for (const RankReport& rank : part.explanation.ranks) {
      const auto found = std::find_if(next, part.histories.end(), [&](const History& history) {
        return history.device == rank.device &&
               static_cast<std::int64_t>(history.times.size()) == rank.events;
      });
      if (found == part.histories.end() || rank.events == 0) continue;
      runs.push_back({&*found, &rank});
      next = found + 1;
    }
  }
  return runs;
}

}  // namespace plimsoll

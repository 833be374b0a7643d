#include "cli/report_pipeline.h"

#include <fmt/format.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/printable.h"
#include "cli/command/command.h"
#include "cli/file_kind.h"
#include "cli/next_steps.h"
#include "cli/report_parts.h"
#include "cli/terminal/terminal.h"
#include "report/page_content.h"

namespace plimsoll {
namespace {

/// Replaying settings takes as long as all the rest.
constexpr std::size_t kMostFilesToReplay = 4;

struct Parts {
  std::vector<ReportPart> own;
  std::vector<ReportPart> baseline;
  /// Of the files that cannot be used.
  int code = kFine;
};

Parts ReadAll(const ReportRequest& request) {
  std::vector<std::string> files = request.files;
  files.insert(files.end(), request.baseline.begin(), request.baseline.end());
  Progress progress("making the report", kStagesOfAPart * files.size());
  PartOptions options{.page = request.format == ReportFormat::kPage,
                      .replay = files.size() <= kMostFilesToReplay,
                      .every_holder = !request.baseline.empty(),
                      .progress = [&] { progress.Advance(); }};
  if (request.redact) options.salt = RandomNumber();
  std::vector<Result<ReportPart>> read = ReadParts(files, options);
  Parts parts;
  for (std::size_t i = 0; i < read.size(); ++i) {
    if (!read[i]) {
      parts.code = Complain(read[i].error());
    } else {
      (i < request.files.size() ? parts.own : parts.baseline).push_back(std::move(*read[i]));
    }
  }
  return parts;
}

PageParts ForPage(std::vector<ReportPart> parts) {
  PageParts page;
  for (ReportPart& part : parts) {
    page.explanations.push_back(std::move(part.explanation));
    for (PageRun& run : part.runs) page.runs.push_back(std::move(run));
  }
  return page;
}

/// With the files of folders, and an output that can be written.
Result<ReportRequest> WithFiles(ReportRequest request) {
  for (std::vector<std::string>* const list : {&request.files, &request.baseline}) {
    Result<std::vector<std::string>> files = RecordFiles(*list);
    if (!files) return files.error();
    *list = *std::move(files);
  }
  if (request.format == ReportFormat::kPage && !request.out) request.out = "report.html";
  std::vector<std::string> inputs = request.files;
  inputs.insert(inputs.end(), request.baseline.begin(), request.baseline.end());
  if (auto error = CheckOutput("-o", request.out, inputs)) return *error;
  return request;
}

int Write(const ReportRequest& request, std::string_view text) {
  const std::string out = request.out.value_or("-");
  const int written = WriteOut(out, text);
  if (written != kFine || out == "-" || Progress::IsSilent()) return written;
  const bool page = request.format == ReportFormat::kPage;
  fmt::print(stderr, "wrote {}, {}{}\n", Printable(out),
             FormatBytes(static_cast<Bytes>(text.size())), page ? ": open it in a browser" : "");
  return kFine;
}

int WritePage(const ReportRequest& request, Parts parts) {
  Result<PageContent> page =
      AssemblePage(ForPage(std::move(parts.own)), ForPage(std::move(parts.baseline)));
  if (!page) return Complain(page.error());
  // Names of files are not told where they are to be left out.
  if (!request.redact) NameJob(JobBehind(page->explanation), page->explanation);
  if (request.files.size() + request.baseline.size() > kMostFilesToReplay) {
    page->left_out.push_back(
        fmt::format("Other allocator settings are replayed for up to {} files; plimsoll tune does "
                    "it for any.",
                    kMostFilesToReplay));
  }
  return Write(request, PageHtml(*page));
}

int WriteExport(const ReportRequest& request, const std::vector<ReportPart>& parts) {
  const std::vector<ExportedRun> runs = ExportedRuns(parts);
  if (runs.empty()) {
    return Complain({.message = "there are no events in it to export",
                     .file = request.files.front(),
                     .hint = "a memory snapshot or a profiler trace has them"});
  }
  if (request.format == ReportFormat::kPerfetto) return Write(request, PerfettoJson(runs));
  const bool csv = request.format == ReportFormat::kCsv;
  if (runs.size() > 1) {
    return Complain({.message = fmt::format("--format {} takes one device of one file, not {}",
                                            csv ? "csv" : "speedscope", runs.size()),
                     .hint = "give one file, or --format perfetto for all"});
  }
  if (csv) return Write(request, HistoryCsv(runs.front()));
  const std::int64_t own = runs.front().rank->instant.event.value_or(kBefore);
  const std::int64_t at = request.at.value_or(own);
  if (at >= runs.front().rank->events) {
    return Complain({.message = fmt::format("there is no event {}; it has {} events", at,
                                            runs.front().rank->events),
                     .file = request.files.front(),
                     .hint = "they are counted from 0"});
  }
  return Write(request, SpeedscopeJson(runs.front(), static_cast<Position>(at)));
}

}  // namespace

int MakeReport(const ReportRequest& asked) {
  const Result<ReportRequest> checked = WithFiles(asked);
  if (!checked) return Complain(checked.error());
  const ReportRequest& request = *checked;
  if (request.at && request.format != ReportFormat::kSpeedscope) {
    return Complain({.message = "--at goes with --format speedscope",
                     .hint = "on the page any event can be chosen: report.html#event=1500"});
  }
  if (!request.baseline.empty() && request.format != ReportFormat::kPage) {
    return Complain({.message = "--compare goes with --format html",
                     .hint = "plimsoll diff compares two runs in text and JSON"});
  }
  Parts parts = ReadAll(request);
  if (parts.own.empty() || parts.baseline.empty() != request.baseline.empty()) return parts.code;
  const int code = parts.code;
  const int written = request.format == ReportFormat::kPage ? WritePage(request, std::move(parts))
                                                            : WriteExport(request, parts.own);
  return written == kFine ? code : written;
}

}  // namespace plimsoll

#include "cli/report_pipeline.h"

#include <fmt/format.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/printable.h"
#include "cli/command/command.h"
#include "cli/file_kind.h"
#include "cli/next_steps.h"
#include "cli/parts_of_job.h"
#include "cli/report_parts.h"
#include "cli/terminal/terminal.h"
#include "report/page_content.h"

namespace plimsoll {
namespace {

/// Replaying settings takes as long as all the rest.
constexpr std::size_t kMostFilesToReplay = 4;

struct Parts {
  std::vector<ReportPart> own;
  std::vector<ReportPart> error_texts;
  std::vector<ReportPart> baseline;
  /// Of the files that cannot be used.
  int code = kFine;
};

template <typename T>
std::vector<T> Concatenated(std::vector<T> first, std::initializer_list<std::vector<T>> more) {
  for (const std::vector<T>& list : more) first.insert(first.end(), list.begin(), list.end());
  return first;
}

Parts ReadAll(const ReportRequest& request, std::optional<std::uint64_t> salt) {
  const std::vector<std::string> files =
      Concatenated(request.files, {request.error_texts, request.baseline});
  const std::size_t records = files.size() - request.error_texts.size();
  Progress progress("making the report", kStagesOfAPart * files.size());
  const PartOptions options{.page = request.format == ReportFormat::kPage,
                            .replay = records <= kMostFilesToReplay,
                            .every_holder = !request.baseline.empty(),
                            .salt = salt,
                            .progress = [&] { progress.Advance(); }};
  std::vector<Result<ReportPart>> read = ReadParts(files, options);
  Parts parts;
  for (std::size_t i = 0; i < read.size(); ++i) {
    if (!read[i]) {
      parts.code = Complain(read[i].error());
      continue;
    }
    const bool own = i < request.files.size();
    const bool text = !own && i < request.files.size() + request.error_texts.size();
    (own ? parts.own : text ? parts.error_texts : parts.baseline).push_back(std::move(*read[i]));
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

/// With the error texts that complete them, and the cards that several share.
PageParts OwnForPage(const ReportRequest& request, std::vector<ReportPart> own,
                     std::vector<ReportPart> error_texts, std::optional<std::uint64_t> salt) {
  CardOptions cards{.paths = PathsThemselves(request.files), .salt = salt};
  for (std::size_t i = 0; salt && i < cards.paths.size(); ++i) {
    cards.paths[i].first = RedactedName(i);
  }
  PageParts page = ForPage(std::move(own));
  PartsOfJob parts = BelongingTogether(std::move(page.explanations),
                                       ForPage(std::move(error_texts)).explanations, cards);
  page.explanations = std::move(parts.explanations);
  page.cards = std::move(parts.cards);
  page.apart = std::move(parts.apart);
  return page;
}

/// With the files of folders, and an output that can be written.
Result<ReportRequest> WithFiles(ReportRequest request) {
  if (request.format == ReportFormat::kPage) {
    for (const std::string& path : request.files) {
      const std::vector<std::string> texts = FilesBehind(path).error_texts;
      request.error_texts.insert(request.error_texts.end(), texts.begin(), texts.end());
    }
  }
  for (std::vector<std::string>* const list : {&request.files, &request.baseline}) {
    Result<std::vector<std::string>> files = RecordFiles(*list);
    if (!files) return files.error();
    *list = *std::move(files);
  }
  if (request.format == ReportFormat::kPage && !request.out) request.out = "report.html";
  const std::vector<std::string> inputs =
      Concatenated(request.files, {request.error_texts, request.baseline});
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

int WritePage(const ReportRequest& request, Parts parts, std::optional<std::uint64_t> salt) {
  PageParts own = OwnForPage(request, std::move(parts.own), std::move(parts.error_texts), salt);
  Result<PageContent> page = AssemblePage(std::move(own), ForPage(std::move(parts.baseline)));
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
  // The same for all of it: a file has one name throughout a page.
  const auto salt = request.redact ? std::optional<std::uint64_t>(RandomNumber()) : std::nullopt;
  Parts parts = ReadAll(request, salt);
  if (parts.own.empty() || parts.baseline.empty() != request.baseline.empty()) return parts.code;
  const int code = parts.code;
  const int written = request.format == ReportFormat::kPage
                          ? WritePage(request, std::move(parts), salt)
                          : WriteExport(request, parts.own);
  return written == kFine ? code : written;
}

}  // namespace plimsoll

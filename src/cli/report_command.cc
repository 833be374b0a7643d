#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "cli/command.h"
#include "cli/terminal.h"
#include "diagnose/explain.h"
#include "diagnose/recorded_history.h"
#include "diagnose/what_if.h"
#include "readers/registry.h"
#include "report/exports.h"
#include "report/history_pack.h"
#include "report/page.h"
#include "timeline/redact.h"

namespace plimsoll {
namespace {

/// More than this makes a page slow to open; what goes beyond is left out, and the page says so.
constexpr std::size_t kMostHistoryBytes = 10'000'000;
/// Replaying settings takes seconds a rank.
constexpr std::size_t kMostRanksToReplay = 4;

struct ReportFlags {
  std::vector<std::string> files;
  std::string format = "html";
  std::string out;
  std::int64_t at = -1;
  bool redact = false;
};

/// What one file adds to the answer.
struct Part {
  Explanation explanation;
  std::vector<PageRun> runs;
  /// For exports, which need it unpacked.
  std::vector<History> histories;
};

/// What is to be made of each file.
struct Wish {
  bool page = true;
  bool replay = true;
  /// File names are replaced, in the same way in all files.
  std::optional<std::uint64_t> salt;
};

std::optional<TuneReport> WhatIf(const Recording& recording, const AnalysedTrace& trace) {
  const WhatIfOptions options;
  const Result<Job> job = PrepareJob(recording, trace, options);
  if (!job) return std::nullopt;  // A record that cannot be replayed has its other views.
  std::optional<Progress> progress;
  std::once_flag begun;
  return TuneJob(*job, options, [&](std::size_t, std::size_t total) {
    std::call_once(begun, [&] { progress.emplace("replaying settings", total); });
    progress->Advance();
  });
}

Result<Part> ReadPart(const std::string& path, std::size_t number, const Wish& wish) try {
  Result<Recording> recording = ReadFile(path);
  if (!recording) return recording.error();
  if (wish.salt) RedactFileNames(*recording, *wish.salt);
  const AnalysedRecording analysed(*recording);
  Result<Explanation> explanation = ExplainRecording(analysed, {});
  if (!explanation) return explanation.error();
  Part part{.explanation = std::move(*explanation)};
  // Not before, since it tells the rank.
  if (wish.salt) recording->file = fmt::format("file {}", number + 1);
  for (RankReport& rank : part.explanation.ranks) rank.file = recording->file;
  for (const auto& trace : analysed.traces) {
    part.histories.push_back(RecordedHistory(*trace));
    if (!wish.page) continue;
    PageRun& run =
        part.runs.emplace_back(PageRun{.file = recording->file, .device = trace->timeline.device});
    run.history = PackHistory(part.histories.back());
    part.histories.clear();
    if (wish.replay) run.what_if = WhatIf(*recording, *trace);
  }
  return part;
} catch (const std::bad_alloc&) {
  return Error{.message = "there is not enough memory to read it", .file = path};
}

struct Parts {
  std::vector<Explanation> explanations;
  std::vector<PageRun> runs;
  /// By file, as the explanations.
  std::vector<std::vector<History>> histories;
  /// Of the files that cannot be used.
  int code = kFine;
};

/// Reads every file on all cores; each is reduced to what is shown before the next is opened.
Parts ReadParts(const ReportFlags& flags) {
  Wish wish{.page = flags.format == "html", .replay = flags.files.size() <= kMostRanksToReplay};
  if (flags.redact)
    wish.salt = std::uint64_t{std::random_device{}()} << 32 | std::random_device{}();
  std::vector<Result<Part>> read(flags.files.size(), Part{});
  Progress progress("reading", flags.files.size());
  ParallelFor(flags.files.size(), [&](std::size_t i) {
    read[i] = ReadPart(flags.files[i], i, wish);
    progress.Advance();
  });
  Parts parts;
  for (Result<Part>& part : read) {
    if (!part) {
      parts.code = Complain(part.error());
      continue;
    }
    parts.explanations.push_back(std::move(part->explanation));
    std::move(part->runs.begin(), part->runs.end(), std::back_inserter(parts.runs));
    parts.histories.push_back(std::move(part->histories));
  }
  return parts;
}

/// Files of ranks that ran out, or that differ from the others.
std::set<std::string> Remarkable(const Explanation& explanation) {
  std::set<std::string> files;
  for (const RankReport& rank : explanation.ranks) {
    const auto& findings = explanation.findings;
    const bool died = std::any_of(rank.ooms.begin(), rank.ooms.end(),
                                  [](const OomReport& oom) { return oom.fatal; });
    const bool odd = std::any_of(findings.begin(), findings.end(), [&](const Finding& f) {
      return f.rank && f.rank == rank.rank && f.id == FindingId::kRankImbalance;
    });
    if (died || odd) files.insert(rank.file);
  }
  return files;
}

/// Where there is not room for all timelines, the remarkable ones stay.
void KeepWhatFits(PageContent& page) {
  const std::set<std::string> remarkable = Remarkable(page.explanation);
  std::size_t bytes = 0;
  std::size_t left_out = 0;
  for (const bool first : {true, false}) {
    for (PageRun& run : page.runs) {
      if (remarkable.contains(run.file) != first) continue;
      if (bytes > 0 && bytes + run.history.size() > kMostHistoryBytes) {
        run.history.clear();
        ++left_out;
      }
      bytes += run.history.size();
    }
  }
  if (left_out == 0) return;
  page.left_out.push_back(
      fmt::format("The timelines of {} of {} ranks were left out to keep the page small: report on "
                  "those ranks alone to see them.",
                  left_out, page.runs.size()));
}

std::string TitleOf(const Explanation& explanation, const ReportFlags& flags) {
  const std::string& first = explanation.ranks.front().file;
  const std::string name = first.substr(first.find_last_of('/') + 1);
  const std::size_t more = flags.files.size() - 1;
  return more == 0 ? name : fmt::format("{} and {} more", name, more);
}

int WritePage(const ReportFlags& flags, Parts parts) {
  PageContent page{.explanation = Join(std::move(parts.explanations)),
                   .runs = std::move(parts.runs)};
  page.title = TitleOf(page.explanation, flags);
  if (flags.files.size() > kMostRanksToReplay) {
    page.left_out.push_back(fmt::format("Other allocator settings are replayed for up to {} files.",
                                        kMostRanksToReplay));
  }
  KeepWhatFits(page);
  return WriteOut(flags.out.empty() ? "report.html" : flags.out, PageHtml(page));
}

/// Each history with what is said of its device.
std::vector<ExportedRun> Paired(const Parts& parts) {
  std::vector<ExportedRun> runs;
  for (std::size_t file = 0; file < parts.histories.size(); ++file) {
    auto next = parts.histories[file].begin();
    for (const RankReport& rank : parts.explanations[file].ranks) {
      const auto found =
          std::find_if(next, parts.histories[file].end(), [&](const History& history) {
            return history.device == rank.device &&
                   static_cast<std::int64_t>(history.times.size()) == rank.events;
          });
      if (found == parts.histories[file].end() || rank.events == 0) continue;
      runs.push_back({&*found, &rank});
      next = found + 1;
    }
  }
  return runs;
}

int WriteExport(const ReportFlags& flags, const Parts& parts) {
  const std::vector<ExportedRun> runs = Paired(parts);
  const std::string out = flags.out.empty() ? "-" : flags.out;
  if (runs.empty()) {
    return Complain({.message = "there are no events in it to export",
                     .file = flags.files.front(),
                     .hint = "a memory snapshot or a profiler trace has them"});
  }
  if (flags.format == "perfetto") return WriteOut(out, PerfettoJson(runs));
  if (runs.size() > 1) {
    return Complain({.message = fmt::format("--format {} takes one device of one file, not {}",
                                            flags.format, runs.size()),
                     .hint = "give one file, or --format perfetto for all"});
  }
  if (flags.format == "csv") return WriteOut(out, HistoryCsv(runs.front()));
  const std::int64_t own = runs.front().rank->instant.event.value_or(kBefore);
  const std::int64_t at = flags.at >= 0 ? flags.at : own;
  if (at >= runs.front().rank->events) {
    return Complain({.message = fmt::format("there is no event {}; it has {} events", at,
                                            runs.front().rank->events),
                     .file = flags.files.front(),
                     .hint = "they are counted from 0"});
  }
  return WriteOut(out, SpeedscopeJson(runs.front(), static_cast<Position>(at)));
}

int RunReport(const ReportFlags& flags) {
  if (flags.at >= 0 && flags.format != "speedscope") {
    return Complain({.message = "--at goes with --format speedscope",
                     .hint = "on the page any event can be chosen: report.html#event=1500"});
  }
  Parts parts = ReadParts(flags);
  if (parts.explanations.empty()) return parts.code;
  const int code = parts.code;
  const int written =
      flags.format == "html" ? WritePage(flags, std::move(parts)) : WriteExport(flags, parts);
  return written == kFine ? code : written;
}

}  // namespace

Command AddReport(CLI::App& app) {
  auto flags = std::make_shared<ReportFlags>();
  app.add_option("FILE", flags->files,
                 "whatever explain reads; several files are the ranks of one job")
      ->required();
  app.add_option("-o,--output", flags->out,
                 "where to write; - is standard output. report.html unless given, standard output "
                 "for other formats")
      ->type_name("OUT");
  app.add_option("--format", flags->format,
                 "html, or perfetto (ui.perfetto.dev), speedscope (speedscope.app), csv")
      ->type_name("F")
      ->check(CLI::IsMember({"html", "perfetto", "speedscope", "csv"}));
  app.add_option("--at", flags->at,
                 "the event whose stacks speedscope gets, not the out-of-memory or the peak")
      ->type_name("EVENT")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--redact", flags->redact, "replace the names of your own files");
  app.footer(
      "Examples:\n"
      "  plimsoll report snapshot.pickle -o report.html   one file that opens anywhere, offline\n"
      "  plimsoll report rank*.pickle -o ranks.html       all ranks, the odd one marked\n"
      "  plimsoll report snapshot.pickle --redact         to show to others\n"
      "  plimsoll report snapshot.pickle --format perfetto -o trace.json");
  return [flags] { return RunReport(*flags); };
}

}  // namespace plimsoll

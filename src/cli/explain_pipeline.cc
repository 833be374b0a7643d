#include "cli/explain_pipeline.h"

#include <fmt/format.h>

#include <new>

#include "base/parallel.h"
#include "base/printable.h"
#include "cli/parts_of_job.h"
#include "cli/terminal/terminal.h"
#include "diagnose/host/host_study.h"
#include "readers/host_record/host_record.h"
#include "readers/registry.h"

namespace plimsoll {
namespace {

/// `ends`: what it says of processes that ended.
Result<Explanation> ExplainFile(const std::string& path, const ExplainOptions& options,
                                std::vector<ReportedEnd>& ends) try {
  const Result<Recording> recording = ReadFile(path);
  if (!recording) return recording.error();
  ends = ReportedEnds(recording->messages);
  return ExplainRecording(*recording, options);
} catch (const std::bad_alloc&) {
  return Error{.message = "there is not enough memory to read it", .file = path};
}

/// Each is reduced to its explanation before the next is opened, so a thousand ranks take no more
/// memory than there are cores.
std::vector<Result<Explanation>> ExplainEach(const std::vector<std::string>& files,
                                             const ExplainOptions& options,
                                             std::vector<ReportedEnd>& ends) {
  std::vector<Result<Explanation>> parts(files.size(), Explanation{});
  std::vector<std::vector<ReportedEnd>> of_each(files.size());
  Progress progress("reading and analysing", files.size());
  ParallelFor(files.size(), [&](std::size_t i) {
    parts[i] = ExplainFile(files[i], options, of_each[i]);
    progress.Advance();
  });
  for (const std::vector<ReportedEnd>& own : of_each)
    ends.insert(ends.end(), own.begin(), own.end());
  return parts;
}

/// Of those that could be read; the others are complained of.
std::vector<Explanation> Usable(std::vector<Result<Explanation>> parts, int& code) {
  std::vector<Explanation> usable;
  for (Result<Explanation>& part : parts) {
    if (part) {
      usable.push_back(std::move(*part));
    } else {
      code = Complain(part.error());
    }
  }
  return usable;
}

std::vector<std::string> Together(std::vector<std::string> files,
                                  const std::vector<std::string>& more) {
  files.insert(files.end(), more.begin(), more.end());
  return files;
}

/// What the exceptions of a run say of its processes, read as a log is.
void AddWorkerTexts(const std::vector<std::string>& texts, std::vector<ReportedEnd>& ends) {
  for (const std::string& text : texts) {
    const Result<Input> input = Input::FromMemory("the exception of a process", text);
    if (!input) continue;
    const Result<Recording> recording = Read(*input);
    if (!recording) continue;
    for (const ReportedEnd& end : ReportedEnds(recording->messages)) ends.push_back(end);
  }
}

/// Which of two says more of why the job ended.
bool SaysMore(const HostStudy& a, const HostStudy& b) {
  const auto key = [](const HostStudy& study) {
    return std::pair(!study.findings.empty(), study.report.peak_together);
  };
  return key(a) > key(b);
}

/// Of several nodes the one where somebody was killed, else the fullest.
std::optional<HostStudy> StudyHosts(const std::vector<std::string>& files,
                                    const std::vector<ReportedEnd>& ends, int& code) {
  std::optional<HostStudy> most;
  std::size_t usable = 0;
  for (const std::string& file : files) {
    const Result<Input> input = Input::Open(file);
    const Result<HostRecord> record =
        input ? ReadHostRecord(*input) : Result<HostRecord>(input.error());
    if (!record) {
      code = Complain(record.error());
      continue;
    }
    ++usable;
    HostStudy study = StudyHost(*record, ends);
    if (!most || SaysMore(study, *most)) most = std::move(study);
  }
  if (usable > 1) {
    most->report.notes.push_back(
        fmt::format("of {} hosts this is the one that matters most", usable));
  }
  return most;
}

void TellHosts(const FolderFiles& files, std::vector<ReportedEnd> ends, Explained& explained) {
  if (files.hosts.empty()) return;
  AddWorkerTexts(files.worker_texts, ends);
  std::optional<HostStudy> study = StudyHosts(files.hosts, ends, explained.code);
  if (!study) return;
  if (!explained.explanation) explained.explanation.emplace();
  AddHost(std::move(*study), *explained.explanation);
}

/// Snapshots and texts, without the host.
Explained ExplainDevices(const FolderFiles& files, const ExplainOptions& options,
                         std::vector<ReportedEnd>& ends) {
  Explained explained{.files = Together(files.snapshots, files.error_texts)};
  std::vector<Explanation> snapshots =
      Usable(ExplainEach(files.snapshots, options, ends), explained.code);
  std::vector<Explanation> texts =
      Usable(ExplainEach(files.error_texts, options, ends), explained.code);
  if (snapshots.empty() && texts.empty()) return explained;
  PartsOfJob parts =
      BelongingTogether(std::move(snapshots), std::move(texts),
                        {.paths = PathsThemselves(files.snapshots), .capacity = options.capacity});
  if (!parts.has_texts) explained.files = files.snapshots;
  explained.explanation = Join(std::move(parts.explanations), std::move(parts.cards), parts.apart);
  return explained;
}

}  // namespace

Explained ExplainFiles(const FolderFiles& files, const ExplainOptions& options) {
  std::vector<ReportedEnd> ends;
  Explained explained = ExplainDevices(files, options, ends);
  TellHosts(files, std::move(ends), explained);
  return explained;
}

Explained ExplainPaths(const std::vector<std::string>& paths, const ExplainOptions& options) {
  FolderFiles files;
  int code = kFine;
  for (const std::string& path : paths) {
    const FolderFiles found = FilesBehind(path);
    const std::optional<Error> wrong = found.hosts.empty() ? WrongForRecords(path) : std::nullopt;
    if (wrong) {
      code = Complain(*wrong);
      continue;
    }
    for (const std::string& said : {found.others, found.missing}) {
      if (!said.empty()) Remark(fmt::format("{}: {}", Printable(path), said));
    }
    files.snapshots = Together(std::move(files.snapshots), found.snapshots);
    files.error_texts = Together(std::move(files.error_texts), found.error_texts);
    files.hosts = Together(std::move(files.hosts), found.hosts);
    files.worker_texts = Together(std::move(files.worker_texts), found.worker_texts);
  }
  Explained explained = ExplainFiles(files, options);
  if (code != kFine) explained.code = code;
  return explained;
}

}  // namespace plimsoll

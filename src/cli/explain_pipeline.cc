#include "cli/explain_pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <new>
#include <set>
#include <utility>

#include "base/parallel.h"
#include "cli/terminal/terminal.h"
#include "diagnose/host/host_study.h"
#include "diagnose/neighbours/same_card.h"
#include "launch/processes.h"
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

/// The hosts of the records that `plimsoll run` left, by file.
std::vector<std::pair<std::string, std::string>> HostsOf(const std::vector<std::string>& files) {
  std::set<std::string> folders;
  for (const std::string& file : files) {
    folders.insert(std::filesystem::path(file).parent_path().string());
  }
  std::vector<std::pair<std::string, std::string>> hosts;
  for (const std::string& folder : folders) {
    for (const RecordedProcess& process : ReadProcesses({.path = folder})) {
      for (const SnapshotFile& snapshot : process.snapshots) {
        hosts.emplace_back(snapshot.path, process.host);
      }
    }
  }
  return hosts;
}

/// A record that was read for a second time: its processes are looked at together.
struct ReadAgain {
  Recording recording;
  std::optional<AnalysedRecording> analysed = {};
};

/// Nothing where a file has changed meanwhile.
std::optional<CardStudy> StudyAgain(const SharedCard& card, const std::vector<Explanation>& all,
                                    std::optional<Bytes> capacity) {
  std::vector<std::unique_ptr<ReadAgain>> read(card.members.size());
  ParallelFor(card.members.size(), [&](std::size_t i) {
    Result<Recording> recording = ReadFile(card.members[i].process.file);
    if (!recording) return;
    read[i] = std::make_unique<ReadAgain>(ReadAgain{.recording = std::move(*recording)});
    read[i]->analysed.emplace(AnalyseRecording(read[i]->recording));
  });
  std::vector<CardTrace> traces;
  for (std::size_t i = 0; i < read.size(); ++i) {
    if (!read[i]) return std::nullopt;
    for (const auto& trace : read[i]->analysed->traces) {
      if (trace->timeline.device != card.device || trace->timeline.events.empty()) continue;
      traces.push_back({card.members[i].process, *trace});
      break;
    }
  }
  if (traces.size() != card.members.size()) return std::nullopt;
  const std::optional<Bytes> told = CapacityBeside(all, card.device);
  return StudyCard(traces, {.device = card.device,
                            .known_by = card.known_by,
                            .capacity = told ? told : capacity,
                            .others = OthersBeside(all, card.device)});
}

/// Joins them as ranks, or as the processes of a card where they share one: those are read once
/// more, since only together they say who kept what from whom.
Explanation JoinAll(std::vector<Explanation> all, const std::vector<std::string>& files,
                    std::optional<Bytes> capacity) {
  // Two snapshots at least.
  if (all.size() < 2) return Join(std::move(all));
  SharedCards shared = FindSharedCards(all, HostsOf(files));
  std::vector<CardStudy> studies;
  for (const SharedCard& card : shared.cards) {
    std::optional<CardStudy> study = StudyAgain(card, all, capacity);
    if (!study) continue;
    if (!study->contradiction.empty()) {
      shared.apart.push_back(study->contradiction);
    } else {
      studies.push_back(std::move(*study));
    }
  }
  return Join(std::move(all), std::move(studies), shared.apart);
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
  std::vector<Explanation> all = snapshots;
  all.insert(all.end(), texts.begin(), texts.end());
  if (all.empty()) return explained;
  explained.explanation = JoinAll(std::move(all), files.snapshots, options.capacity);
  const auto alone = [&](const RankReport& rank) {
    return std::ranges::find(files.error_texts, rank.file) != files.error_texts.end();
  };
  if (!snapshots.empty() && std::ranges::any_of(explained.explanation->ranks, alone)) {
    explained.files = files.snapshots;
    explained.explanation = JoinAll(std::move(snapshots), files.snapshots, options.capacity);
  }
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

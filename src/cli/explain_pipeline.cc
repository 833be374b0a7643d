#include "cli/explain_pipeline.h"

#include <new>

#include "base/parallel.h"
#include "cli/parts_of_job.h"
#include "cli/terminal/terminal.h"
#include "readers/registry.h"

namespace plimsoll {
namespace {

Result<Explanation> ExplainFile(const std::string& path, const ExplainOptions& options) try {
  const Result<Recording> recording = ReadFile(path);
  if (!recording) return recording.error();
  return ExplainRecording(*recording, options);
} catch (const std::bad_alloc&) {
  return Error{.message = "there is not enough memory to read it", .file = path};
}

/// Each is reduced to its explanation before the next is opened, so a thousand ranks take no more
/// memory than there are cores.
std::vector<Result<Explanation>> ExplainEach(const std::vector<std::string>& files,
                                             const ExplainOptions& options) {
  std::vector<Result<Explanation>> parts(files.size(), Explanation{});
  Progress progress("reading and analysing", files.size());
  ParallelFor(files.size(), [&](std::size_t i) {
    parts[i] = ExplainFile(files[i], options);
    progress.Advance();
  });
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

}  // namespace

Explained ExplainFiles(const FolderFiles& files, const ExplainOptions& options) {
  Explained explained{.files = Together(files.snapshots, files.error_texts)};
  std::vector<Explanation> snapshots =
      Usable(ExplainEach(files.snapshots, options), explained.code);
  std::vector<Explanation> texts = Usable(ExplainEach(files.error_texts, options), explained.code);
  if (snapshots.empty() && texts.empty()) return explained;
  PartsOfJob parts =
      BelongingTogether(std::move(snapshots), std::move(texts),
                        {.paths = PathsThemselves(files.snapshots), .capacity = options.capacity});
  if (!parts.has_texts) explained.files = files.snapshots;
  explained.explanation = Join(std::move(parts.explanations), std::move(parts.cards), parts.apart);
  return explained;
}

Explained ExplainPaths(const std::vector<std::string>& paths, const ExplainOptions& options) {
  FolderFiles files;
  int code = kFine;
  for (const std::string& path : paths) {
    if (const std::optional<Error> wrong = WrongForRecords(path)) {
      code = Complain(*wrong);
      continue;
    }
    const FolderFiles found = FilesBehind(path);
    files.snapshots = Together(std::move(files.snapshots), found.snapshots);
    files.error_texts = Together(std::move(files.error_texts), found.error_texts);
  }
  Explained explained = ExplainFiles(files, options);
  if (code != kFine) explained.code = code;
  return explained;
}

}  // namespace plimsoll

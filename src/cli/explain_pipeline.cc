#include "cli/explain_pipeline.h"

#include <new>

#include "base/parallel.h"
#include "cli/terminal.h"
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

}  // namespace

Explained ExplainFiles(const std::vector<std::string>& files, const ExplainOptions& options) {
  Explained explained;
  std::vector<Explanation> usable;
  for (Result<Explanation>& part : ExplainEach(files, options)) {
    if (part) {
      usable.push_back(std::move(*part));
    } else {
      explained.code = Complain(part.error());
    }
  }
  if (!usable.empty()) explained.explanation = Join(std::move(usable));
  return explained;
}

}  // namespace plimsoll

#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "cli/command.h"
#include "cli/terminal.h"
#include "diagnose/explain.h"
#include "readers/registry.h"
#include "report/json.h"
#include "report/text.h"

namespace plimsoll {
namespace {

struct ExplainFlags {
  std::vector<std::string> files;
  std::optional<std::int64_t> at;
  bool json = false;
};

Result<Explanation> ExplainFile(const std::string& path, const ExplainOptions& options) try {
  const Result<Recording> recording = ReadFile(path);
  if (!recording) return recording.error();
  return ExplainRecording(*recording, options);
} catch (const std::bad_alloc&) {
  return Error{.message = "there is not enough memory to read it", .file = path};
}

/// Reads every file on all cores; each is reduced to its explanation before the next is opened, so
/// a thousand ranks take no more memory than there are cores.
std::vector<Result<Explanation>> ExplainFiles(const ExplainFlags& flags) {
  const ExplainOptions options{.at_event = flags.at};
  std::vector<Result<Explanation>> parts(flags.files.size(), Explanation{});
  Progress progress("reading and analysing", flags.files.size());
  ParallelFor(flags.files.size(), [&](std::size_t i) {
    parts[i] = ExplainFile(flags.files[i], options);
    progress.Advance();
  });
  return parts;
}

/// A file that cannot be used is named; the others are still explained, and the exit code tells.
int RunExplain(const ExplainFlags& flags) {
  std::vector<Explanation> usable;
  int code = kFine;
  for (Result<Explanation>& part : ExplainFiles(flags)) {
    if (part) {
      usable.push_back(std::move(*part));
    } else {
      code = Complain(part.error());
    }
  }
  if (usable.empty()) return code;
  const Explanation explanation = Join(std::move(usable));
  const int printed = Print(flags.json ? ExplanationJson(explanation)
                                       : ExplanationText(explanation, StyleOfStdout()));
  return printed == kFine ? code : printed;
}

}  // namespace

Command AddExplain(Flags& declare) {
  auto flags = std::make_shared<ExplainFlags>();
  declare.Arguments("FILE", flags->files,
                    "error texts or logs, memory snapshots, memory summaries, profiler traces, "
                    "nsys exports; - is standard input; several files are the ranks of one job");
  declare.Count("--at", "EVENT", flags->at,
                "account at this event, not at the out-of-memory or the peak");
  declare.Switch("--json", flags->json, "one JSON document (docs/json.md)");
  declare.Examples(
      "  plimsoll explain train.log   what the error text alone tells\n"
      "  plimsoll explain snapshot.pickle   why it ran out, or what its peak is made of\n"
      "  plimsoll explain snapshot.pickle train.log   both: the account reaches the capacity\n"
      "  plimsoll explain rank*.pickle   which rank is the odd one\n"
      "  kubectl logs job/train | plimsoll explain -");
  return [flags] { return RunExplain(*flags); };
}

}  // namespace plimsoll

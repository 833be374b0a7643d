#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/command/command.h"
#include "cli/explain_pipeline.h"
#include "cli/next_steps.h"
#include "cli/terminal/terminal.h"
#include "report/json.h"
#include "report/text.h"

namespace plimsoll {
namespace {

struct ExplainFlags {
  std::vector<std::string> files;
  std::optional<std::int64_t> at;
  std::optional<GroupPattern> group;
  std::optional<Bytes> capacity;
  bool json = false;
};

/// What to record next is told once: as the command to type, unless that is to be left out.
int PrintExplanation(Explanation explanation, const std::vector<NextStep>& next) {
  if (!Progress::IsSilent()) explanation.record_next.by_run = false;
  return PrintWithNext(ExplanationText(explanation, StyleOfStdout()), next);
}

int RunExplain(const ExplainFlags& flags) {
  const Explained explained = ExplainPaths(
      flags.files, {.at_event = flags.at, .group = flags.group, .capacity = flags.capacity});
  if (!explained.explanation) return explained.code;
  Explanation explanation = *explained.explanation;
  const JobCommand job = JobBehind(explanation);
  NameJob(job, explanation);
  const std::vector<NextStep> next = AfterExplain(explanation, flags.files, job);
  const int printed = flags.json ? Print(ExplanationJson(explanation, next))
                                 : PrintExplanation(std::move(explanation), next);
  return printed == kFine ? explained.code : printed;
}

}  // namespace

Command AddExplain(Flags& declare) {
  auto flags = std::make_shared<ExplainFlags>();
  declare.Arguments(
      "FILE", flags->files,
      "error texts or logs, memory snapshots, memory summaries, profiler traces, "
      "nsys exports; or the folder that plimsoll run left; - is standard input; several "
      "files are the ranks of one job, or processes that share a card");
  declare.Count("--at", "EVENT", flags->at,
                "account at this event, not at the out-of-memory or the peak");
  declare.Value("--group", "REGEX",
                "add the holders up by what this finds in the names of their files and functions, "
                "or of the marks that they were made in",
                [flags](const std::string& text) -> std::optional<Error> {
                  const Result<GroupPattern> pattern = GroupPattern::Parse(text);
                  if (!pattern) return pattern.error();
                  flags->group = *pattern;
                  return std::nullopt;
                });
  declare.Size("--capacity", flags->capacity,
               "the memory of a card that several processes share, where no error text tells it");
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

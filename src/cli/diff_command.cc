#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/allowance.h"
#include "cli/command/command.h"
#include "cli/file_kind.h"
#include "cli/next_steps.h"
#include "cli/terminal/terminal.h"
#include "diagnose/diff.h"
#include "readers/registry.h"
#include "report/json.h"
#include "report/text.h"

namespace plimsoll {
namespace {

struct DiffFlags {
  std::string before;
  std::vector<std::string> after;
  std::optional<Allowance> fail_above;
  bool json = false;
  bool markdown = false;
};

/// The paths of the two runs: one each, or as many of the one as of the other.
struct TwoRuns {
  std::vector<std::string> before;
  std::vector<std::string> after;
};

Result<TwoRuns> SplitRuns(const DiffFlags& flags) {
  std::vector<std::string> all = {flags.before};
  all.insert(all.end(), flags.after.begin(), flags.after.end());
  if (all.size() % 2 != 0) {
    return Error{.message = fmt::format("{} records are given", all.size()),
                 .hint =
                     "give two, two folders, or the ranks of one run and then as many of the "
                     "other"};
  }
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  return TwoRuns{.before = {all.begin(), middle}, .after = {middle, all.end()}};
}

/// Each file is reduced to what is compared before the next is read.
Result<ComparedRun> ReadRun(const std::vector<std::string>& paths) {
  const Result<std::vector<std::string>> files = RecordFiles(paths);
  if (!files) return files.error();
  ComparedRun run;
  for (const std::string& file : *files) {
    const Result<Recording> recording = ReadFile(file);
    if (!recording) return recording.error();
    if (std::optional<Error> error = run.Add(*recording)) return *error;
  }
  return run;
}

std::string Rendered(const Difference& difference, const DiffFlags& flags) {
  if (flags.json) return DifferenceJson(difference);
  if (flags.markdown) return DifferenceMarkdown(difference);
  return DifferenceText(difference, StyleOfStdout());
}

/// That every rank keeps to it, or a line that says which does not.
int Judge(const Difference& difference, const Allowance& allowance) {
  for (const RankDifference& rank : difference.ranks) {
    const std::string of = difference.ranks.size() > 1 ? " of " + rank.name : "";
    if (rank.RunsOutNow()) {
      Complain({.message =
                    fmt::format("the second run{} ran out of memory, and the first did not", of)});
      return kNo;
    }
    for (const auto& [name, peak] :
         {std::pair{"allocated", &rank.allocated}, std::pair{"reserved", &rank.reserved}}) {
      if (allowance.Allows(*peak)) continue;
      Complain({.message = fmt::format("the {} peak{} grew by {}, more than {}", name, of,
                                       FormatBytes(peak->growth()), allowance.text)});
      return kNo;
    }
  }
  return kFine;
}

int RunDiff(const DiffFlags& flags) {
  if (flags.json && flags.markdown) {
    return Complain({.message = "--json and --markdown are two documents; give one of them"});
  }
  const Result<TwoRuns> runs = SplitRuns(flags);
  if (!runs) return Complain(runs.error());
  Progress progress("reading");
  const Result<ComparedRun> before = ReadRun(runs->before);
  if (!before) return Complain(before.error());
  const Result<ComparedRun> after = ReadRun(runs->after);
  if (!after) return Complain(after.error());
  progress.Next("comparing");
  const Result<Difference> difference = CompareRuns(*before, *after);
  if (!difference) return Complain(difference.error());
  const std::string text = Rendered(*difference, flags);
  const bool plain = !flags.json && !flags.markdown;
  const int printed =
      plain ? PrintWithNext(text, AfterDiff(runs->before, runs->after)) : Print(text);
  if (!flags.fail_above || printed != kFine) return printed;
  return Judge(*difference, *flags.fail_above);
}

}  // namespace

Command AddDiff(Flags& declare) {
  auto flags = std::make_shared<DiffFlags>();
  declare.Argument("BEFORE", flags->before,
                   "a memory snapshot, or the folder that plimsoll run left: its ranks are "
                   "compared by their numbers");
  declare.Arguments(
      "AFTER", flags->after,
      "the same of the other run. Or all ranks of the one run, then all of the other");
  declare.Value(
      "--fail-above", "SIZE",
      "exit with 1 if the peak of any rank, allocated or reserved, grew by more than this (200MiB, "
      "5%), or if the second run ran out of memory and the first did not",
      [flags](const std::string& text) { return ReadAllowance(text, flags->fail_above); });
  declare.Switch("--markdown", flags->markdown, "a comment for a pull request");
  declare.Switch("--json", flags->json, "one JSON document (docs/json.md)");
  declare.Examples(
      "  plimsoll diff yesterday.pickle today.pickle   what grew\n"
      "  plimsoll diff main.pickle branch.pickle --fail-above 5%   a gate for CI\n"
      "  plimsoll diff plimsoll-run-1 plimsoll-run-2   every rank of two runs\n"
      "Exit code 1: it grew by more than --fail-above, or runs out of memory now.");
  return [flags] { return RunDiff(*flags); };
}

}  // namespace plimsoll

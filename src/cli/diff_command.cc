#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>

#include "cli/command.h"
#include "cli/terminal.h"
#include "diagnose/diff.h"
#include "readers/registry.h"
#include "report/json.h"
#include "report/text.h"

namespace plimsoll {
namespace {

struct DiffFlags {
  std::string before;
  std::string after;
  std::optional<Bytes> fail_above;
  bool json = false;
};

int RunDiff(const DiffFlags& flags) {
  Progress progress("reading");
  const Result<Recording> before = ReadFile(flags.before);
  if (!before) return Complain(before.error());
  const Result<Recording> after = ReadFile(flags.after);
  if (!after) return Complain(after.error());
  progress.Next("comparing");
  const Result<Difference> difference = CompareRecordings(*before, *after);
  if (!difference) return Complain(difference.error());
  const int printed = Print(flags.json ? DifferenceJson(*difference)
                                       : DifferenceText(*difference, StyleOfStdout()));
  if (!flags.fail_above || printed != kFine) return printed;
  if (difference->growth() <= *flags.fail_above) return kFine;
  Complain({.message = fmt::format("grew by {}, more than {}", FormatBytes(difference->growth()),
                                   FormatBytes(*flags.fail_above))});
  return kNo;
}

}  // namespace

Command AddDiff(Flags& declare) {
  auto flags = std::make_shared<DiffFlags>();
  declare.Argument("BEFORE", flags->before, "a memory snapshot");
  declare.Argument("AFTER", flags->after, "a memory snapshot");
  declare.Size("--fail-above", flags->fail_above,
               "exit with 1 if the peak, allocated or reserved, grew by more than this (200MiB)");
  declare.Switch("--json", flags->json, "one JSON document (docs/json.md)");
  declare.Examples(
      "  plimsoll diff yesterday.pickle today.pickle   what grew\n"
      "  plimsoll diff main.pickle branch.pickle --fail-above 200MiB   a gate for CI\n"
      "Exit code 1: it grew by more than --fail-above.");
  return [flags] { return RunDiff(*flags); };
}

}  // namespace plimsoll

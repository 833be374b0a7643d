#include <fmt/format.h>

#include <limits>
#include <memory>

#include "cli/command.h"
#include "cli/terminal.h"
#include "diagnose/diff.h"
#include "diagnose/explain.h"
#include "readers/registry.h"
#include "report/json.h"
#include "report/text.h"

namespace plimsoll {
namespace {

struct DiffFlags {
  std::string before;
  std::string after;
  std::string fail_above;
  bool json = false;
};

Result<RankReport> ReadRank(const std::string& path) {
  Result<Recording> recording = ReadFile(path);
  if (!recording) return recording.error();
  // Every holder counts here: a small one may be what grew.
  Result<Explanation> explanation = ExplainRecording(
      *recording, {.at_event = {}, .most_holders = std::numeric_limits<std::size_t>::max()});
  if (!explanation) return explanation.error();
  return std::move(explanation->ranks.front());
}

int RunDiff(const DiffFlags& flags) {
  std::optional<Bytes> most;
  if (!flags.fail_above.empty()) {
    Result<Bytes> parsed = ParseBytes(flags.fail_above);
    if (!parsed) return Complain(parsed.error());
    most = *parsed;
  }
  Result<RankReport> before = ReadRank(flags.before);
  if (!before) return Complain(before.error());
  Result<RankReport> after = ReadRank(flags.after);
  if (!after) return Complain(after.error());
  const Result<Difference> difference = Compare(*before, *after);
  if (!difference) return Complain(difference.error());
  const int printed = Print(flags.json ? DifferenceJson(*difference)
                                       : DifferenceText(*difference, StyleOfStdout()));
  if (!most || printed != kFine) return printed;
  const Bytes growth = std::max(difference->allocated.growth(), difference->reserved.growth());
  if (growth <= *most) return kFine;
  fmt::print(stderr, "plimsoll: grew by {}, more than {}\n", FormatBytes(growth),
             FormatBytes(*most));
  return kNo;
}

}  // namespace

Command AddDiff(CLI::App& app) {
  auto flags = std::make_shared<DiffFlags>();
  app.add_option("BEFORE", flags->before, "a memory snapshot")->required();
  app.add_option("AFTER", flags->after, "a memory snapshot")->required();
  app.add_option("--fail-above", flags->fail_above,
                 "exit with 1 if the peak, allocated or reserved, grew by more than this (200MiB)");
  app.add_flag("--json", flags->json, "one JSON document (docs/json.md)");
  app.footer(
      "Examples:\n"
      "  plimsoll diff yesterday.pickle today.pickle\n"
      "  plimsoll diff main.pickle branch.pickle --fail-above 200MiB   a gate for CI");
  return [flags] { return RunDiff(*flags); };
}

}  // namespace plimsoll

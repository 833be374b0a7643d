#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

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
  std::optional<std::string> fail_above;
  bool json = false;
};

Result<std::vector<RankReport>> ReadRanks(const std::string& path) {
  Result<Recording> recording = ReadFile(path);
  if (!recording) return recording.error();
  // Every holder counts here: a small one may be what grew.
  Result<Explanation> explanation = ExplainRecording(
      *recording, {.at_event = {}, .most_holders = std::numeric_limits<std::size_t>::max()});
  if (!explanation) return explanation.error();
  return std::move(explanation->ranks);
}

Bytes GrowthOf(const Difference& d) { return std::max(d.allocated.growth(), d.reserved.growth()); }

/// Compares device by device; the one that grew most is the answer.
Result<Difference> CompareDevices(const std::vector<RankReport>& before,
                                  const std::vector<RankReport>& after) {
  std::optional<Difference> most;
  for (const RankReport& now : after) {
    const RankReport* then = &before.front();
    for (const RankReport& candidate : before) {
      if (candidate.device == now.device) then = &candidate;
    }
    Result<Difference> difference = Compare(*then, now);
    if (!difference) return difference;
    if (after.size() > 1) {
      difference->verdict =
          fmt::format("Device {}, of {}: ", now.device.value_or(0), after.size()) +
          difference->verdict;
    }
    if (!most || GrowthOf(*difference) > GrowthOf(*most)) most = std::move(*difference);
  }
  return *most;
}

int RunDiff(const DiffFlags& flags) {
  std::optional<Bytes> most;
  if (flags.fail_above) {
    Result<Bytes> parsed = ParseBytes(*flags.fail_above);
    if (!parsed) return Complain(parsed.error());
    most = *parsed;
  }
  Result<std::vector<RankReport>> before = ReadRanks(flags.before);
  if (!before) return Complain(before.error());
  Result<std::vector<RankReport>> after = ReadRanks(flags.after);
  if (!after) return Complain(after.error());
  const Result<Difference> difference = CompareDevices(*before, *after);
  if (!difference) return Complain(difference.error());
  const int printed = Print(flags.json ? DifferenceJson(*difference)
                                       : DifferenceText(*difference, StyleOfStdout()));
  if (!most || printed != kFine) return printed;
  const Bytes growth = GrowthOf(*difference);
  if (growth <= *most) return kFine;
  Complain({.message =
                fmt::format("grew by {}, more than {}", FormatBytes(growth), FormatBytes(*most))});
  return kNo;
}

}  // namespace

Command AddDiff(CLI::App& app) {
  auto flags = std::make_shared<DiffFlags>();
  app.add_option("BEFORE", flags->before, "a memory snapshot")->required();
  app.add_option("AFTER", flags->after, "a memory snapshot")->required();
  app.add_option_function<std::string>(
      "--fail-above", [flags](const std::string& text) { flags->fail_above = text; },
      "exit with 1 if the peak, allocated or reserved, grew by more than this (200MiB)");
  app.add_flag("--json", flags->json, "one JSON document (docs/json.md)");
  app.footer(
      "Examples:\n"
      "  plimsoll diff yesterday.pickle today.pickle\n"
      "  plimsoll diff main.pickle branch.pickle --fail-above 200MiB   a gate for CI");
  return [flags] { return RunDiff(*flags); };
}

}  // namespace plimsoll

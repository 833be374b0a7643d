#include <fmt/format.h>

#include <charconv>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "cli/command.h"
#include "cli/terminal.h"
#include "diagnose/diff.h"
#include "readers/registry.h"
#include "report/json.h"
#include "report/text.h"

namespace plimsoll {
namespace {

/// The most that a peak may grow: bytes, or parts of what it was.
struct Allowance {
  std::string text;
  std::optional<Bytes> bytes;
  double part = 0;

  bool Allows(const Change& peak) const {
    if (bytes) return peak.growth() <= *bytes;
    return static_cast<double>(peak.growth()) <= part * static_cast<double>(peak.before);
  }
};

std::optional<Error> ReadAllowance(const std::string& text, std::optional<Allowance>& to) {
  constexpr double kMostPercent = 1e6;
  if (!text.ends_with('%')) {
    const Result<Bytes> bytes = ParseBytes(text);
    if (!bytes) return bytes.error();
    to = Allowance{.text = FormatBytes(*bytes), .bytes = *bytes};
    return std::nullopt;
  }
  double percent = 0;
  const char* const end = text.data() + text.size() - 1;
  const auto parsed = std::from_chars(text.data(), end, percent);
  const bool good = parsed.ec == std::errc() && parsed.ptr == end && percent >= 0;
  if (!good || percent > kMostPercent) {
    return Error{.message = fmt::format("'{}' is no percentage such as 5%", text)};
  }
  to = Allowance{.text = text, .part = percent / 100};
  return std::nullopt;
}

struct DiffFlags {
  std::string before;
  std::string after;
  std::optional<Allowance> fail_above;
  bool json = false;
  bool markdown = false;
};

std::string Rendered(const Difference& difference, const DiffFlags& flags) {
  if (flags.json) return DifferenceJson(difference);
  if (flags.markdown) return DifferenceMarkdown(difference);
  return DifferenceText(difference, StyleOfStdout());
}

/// That the peaks keep to it, or a line that says which does not.
int Judge(const Difference& difference, const Allowance& allowance) {
  for (const auto& [name, peak] : {std::pair{"allocated", &difference.allocated},
                                   std::pair{"reserved", &difference.reserved}}) {
    if (allowance.Allows(*peak)) continue;
    Complain({.message = fmt::format("the {} peak grew by {}, more than {}", name,
                                     FormatBytes(peak->growth()), allowance.text)});
    return kNo;
  }
  return kFine;
}

int RunDiff(const DiffFlags& flags) {
  if (flags.json && flags.markdown) {
    return Complain({.message = "--json and --markdown are two documents; give one of them"});
  }
  Progress progress("reading");
  const Result<Recording> before = ReadFile(flags.before);
  if (!before) return Complain(before.error());
  const Result<Recording> after = ReadFile(flags.after);
  if (!after) return Complain(after.error());
  progress.Next("comparing");
  const Result<Difference> difference = CompareRecordings(*before, *after);
  if (!difference) return Complain(difference.error());
  const int printed = Print(Rendered(*difference, flags));
  if (!flags.fail_above || printed != kFine) return printed;
  return Judge(*difference, *flags.fail_above);
}

}  // namespace

Command AddDiff(Flags& declare) {
  auto flags = std::make_shared<DiffFlags>();
  declare.Argument("BEFORE", flags->before, "a memory snapshot");
  declare.Argument("AFTER", flags->after, "a memory snapshot");
  declare.Value(
      "--fail-above", "SIZE",
      "exit with 1 if the peak, allocated or reserved, grew by more than this (200MiB, 5%)",
      [flags](const std::string& text) { return ReadAllowance(text, flags->fail_above); });
  declare.Switch("--markdown", flags->markdown, "a comment for a pull request");
  declare.Switch("--json", flags->json, "one JSON document (docs/json.md)");
  declare.Examples(
      "  plimsoll diff yesterday.pickle today.pickle   what grew\n"
      "  plimsoll diff main.pickle branch.pickle --fail-above 5%   a gate for CI\n"
      "Exit code 1: it grew by more than --fail-above.");
  return [flags] { return RunDiff(*flags); };
}

}  // namespace plimsoll

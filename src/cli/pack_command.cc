#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>

#include "allocator/ledger.h"
#include "cli/command.h"
#include "cli/terminal.h"
#include "diagnose/pack_trace.h"
#include "packing/bound.h"
#include "packing/csv.h"
#include "packing/validate.h"
#include "readers/registry.h"
#include "report/json.h"
#include "report/text.h"

namespace plimsoll {
namespace {

struct PackFlags {
  std::string file;
  std::optional<std::string> capacity;
  double seconds = 10;
  bool csv = false;
  bool json = false;
};

/// A table of buffers begins with a row of names, one of which is size.
bool LooksLikeCsv(std::string_view bytes) {
  const std::string_view first = bytes.substr(0, std::min(bytes.find('\n'), std::size_t{200}));
  const bool json = first.starts_with('{') || first.starts_with('[');
  return !json && first.find(',') != first.npos && first.find("size") != first.npos;
}

Result<PackReport> FromCsv(const Input& input, PackingCsv& csv) {
  Result<PackingCsv> read = ReadPackingCsv(input);
  if (!read) return read.error();
  csv = std::move(*read);
  PackReport report{.ids = csv.ids, .problem = csv.problem};
  if (csv.with_gaps > 0) {
    report.notes.push_back(fmt::format(
        "{} of the buffers have gaps in their lifetimes, which are not used: a lower packing may "
        "exist",
        csv.with_gaps));
  }
  return report;
}

Result<PackReport> FromTrace(const Input& input, PackingCsv& csv) {
  const Result<Recording> recording = Read(input);
  if (!recording) return recording.error();
  const Timeline* timeline = nullptr;
  for (const Timeline& t : recording->timelines) {
    if (timeline == nullptr || t.events.size() > timeline->events.size()) timeline = &t;
  }
  if (timeline == nullptr || timeline->events.empty()) {
    return Error{.message = "it holds no allocations with lifetimes",
                 .hint = "give a memory snapshot with events, or a CSV with id,lower,upper,size"};
  }
  PackReport report{.problem = PackingProblem(*timeline, Follow(*timeline))};
  for (std::size_t i = 0; i < report.problem.buffers.size(); ++i) {
    report.ids.push_back(fmt::format("{}", i));
  }
  csv = {.problem = report.problem, .ids = report.ids};
  return report;
}

int RunPack(const PackFlags& flags) {
  // CLI11's range lets "nan" through.
  if (std::isnan(flags.seconds)) return Complain({.message = "--seconds: nan is no time"});
  std::optional<Bytes> capacity;
  if (flags.capacity) {
    const Result<Bytes> parsed = ParseBytes(*flags.capacity);
    if (!parsed) return Complain(parsed.error());
    capacity = *parsed;
  }
  const Result<Input> input = Input::Open(flags.file);
  if (!input) return Complain(input.error());
  PackingCsv csv;
  Result<PackReport> report =
      LooksLikeCsv(input->bytes()) ? FromCsv(*input, csv) : FromTrace(*input, csv);
  if (!report) {
    Error error = report.error();
    if (error.file.empty()) error.file = flags.file;
    return Complain(error);
  }
  report->file = flags.file;
  report->capacity = capacity;
  report->most_alive = MostAlive(report->problem);
  Result<PackResult> result =
      Pack(report->problem, {.capacity = capacity, .seconds = flags.seconds, .threads = 0});
  if (!result) return Complain(result.error());
  report->result = std::move(*result);
  report->fault = FindFault(report->problem, report->result.packing);
  const int printed = Print(flags.csv    ? WritePackingCsv(csv, report->result.packing)
                            : flags.json ? PackJson(*report)
                                         : PackText(*report, StyleOfStdout()));
  if (printed != kFine) return printed;
  return report->result.fits == Fits::kYes && !report->fault ? kFine : kNo;
}

}  // namespace

Command AddPack(CLI::App& app) {
  auto flags = std::make_shared<PackFlags>();
  app.add_option("FILE", flags->file,
                 "a CSV with the columns id,lower,upper,size (MiniMalloc's), or a memory snapshot")
      ->required();
  app.add_option("--capacity", flags->capacity, "does it fit into this? (1048576, 22GiB)");
  app.add_option("--seconds", flags->seconds, "how long to search at most")
      ->check(CLI::Range(0.0, 1e6).description(""))
      ->type_name("SECONDS")
      ->capture_default_str();
  app.add_flag("--csv", flags->csv, "the same table with an offset for each buffer");
  app.add_flag("--json", flags->json, "one JSON document (docs/json.md)");
  app.footer(
      "Examples:\n"
      "  plimsoll pack buffers.csv --capacity 1048576   a packing that fits, or proof that none "
      "does\n"
      "  plimsoll pack run.pickle                       what the job would need, packed perfectly\n"
      "Exit code 1: it does not fit, or the time was too short to tell.");
  return [flags] { return RunPack(*flags); };
}

}  // namespace plimsoll

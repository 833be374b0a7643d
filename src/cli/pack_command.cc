#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>

#include "cli/command/command.h"
#include "cli/file_kind.h"
#include "cli/next_steps.h"
#include "cli/pack_input.h"
#include "cli/terminal/terminal.h"
#include "packing/bound.h"
#include "packing/solve.h"
#include "packing/validate.h"
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

int RunPack(const PackFlags& flags) {
  Progress progress("reading");
  PackingCsv csv;
  Result<PackReport> report = ReadProblem(flags.file, flags.capacity, csv);
  if (!report) return Complain(report.error());
  progress.Next(fmt::format("packing {} buffers", report->problem.buffers.size()));
  report->most_alive = MostAlive(report->problem);
  Result<PackResult> result =
      Pack(report->problem, {.capacity = report->capacity, .seconds = flags.seconds, .threads = 0});
  if (!result) return Complain(result.error());
  report->result = std::move(*result);
  report->fault = FindFault(report->problem, report->result.packing);
  const int printed = flags.csv    ? Print(WritePackingCsv(csv, report->result.packing))
                      : flags.json ? Print(PackJson(*report))
                                   : PrintWithNext(PackText(*report, StyleOfStdout()),
                                                   KindOf(report->file) == FileKind::kTrace
                                                       ? AfterPack(report->file)
                                                       : std::vector<NextStep>{});
  if (printed != kFine) return printed;
  return report->result.fits == Fits::kYes && !report->fault ? kFine : kNo;
}

}  // namespace

Command AddPack(Flags& declare) {
  auto flags = std::make_shared<PackFlags>();
  declare.Argument(
      "FILE", flags->file,
      "a CSV with the columns id,lower,upper,size (MiniMalloc's), or a memory snapshot");
  declare.Text("--capacity", "SIZE", flags->capacity,
               "does it fit into this? (22GiB; of a CSV also 1048576)");
  declare.Seconds("--seconds", flags->seconds, "how long to search at most (10)");
  declare.Switch("--csv", flags->csv, "the same table with an offset for each buffer");
  declare.Switch("--json", flags->json, "one JSON document (docs/json.md)");
  declare.Examples(
      "  plimsoll pack buffers.csv --capacity 1048576   a packing that fits, or proof that none "
      "does\n"
      "  plimsoll pack run.pickle   what the job would need, packed perfectly\n"
      "Exit code 1: it does not fit, or the time was too short to tell.");
  return [flags] { return RunPack(*flags); };
}

}  // namespace plimsoll

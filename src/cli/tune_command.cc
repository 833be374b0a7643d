#include <memory>
#include <mutex>

#include "cli/command.h"
#include "cli/terminal.h"
#include "cli/what_if_flags.h"
#include "diagnose/what_if.h"
#include "readers/registry.h"
#include "report/json.h"
#include "report/text.h"

namespace plimsoll {
namespace {

int RunTune(const WhatIfFlags& flags) {
  const Result<WhatIfOptions> options = flags.Options();
  if (!options) return Complain(options.error());
  Progress progress("reading");
  const Result<Recording> recording = ReadFile(flags.file);
  if (!recording) return Complain(recording.error());
  progress.Next("analysing");
  const AnalysedRecording analysed(*recording);
  const Result<Job> job = PrepareJob(analysed, *options);
  if (!job) return Complain(job.error());
  std::once_flag begun;
  const TuneReport report = TuneJob(*job, *options, [&](std::size_t, std::size_t total) {
    std::call_once(begun, [&] { progress.Next("replaying settings", total); });
    progress.Advance();
  });
  const int printed = Print(flags.json ? TuneJson(report) : TuneText(report, StyleOfStdout()));
  if (printed != kFine) return printed;
  return report.result.rows[report.result.best].replayed.fits ? kFine : kNo;
}

}  // namespace

Command AddTune(Flags& declare) {
  auto flags = std::make_shared<WhatIfFlags>();
  flags->AddTo(declare);
  declare.Examples(
      "  plimsoll tune run.pickle                   the settings that hold least\n"
      "  plimsoll tune run.pickle --gpu RTX4090     those that fit on an RTX 4090\n"
      "  plimsoll tune run.pickle --capacity 22GiB  those that fit in this much\n"
      "Exit code 1: nothing that was tried makes it fit.");
  return [flags] { return RunTune(*flags); };
}

}  // namespace plimsoll

#include "cli/tune_command.h"

#include <memory>
#include <mutex>

#include "cli/command/command.h"
#include "cli/file_kind.h"
#include "cli/next_steps.h"
#include "cli/terminal/terminal.h"
#include "diagnose/script_of.h"
#include "readers/registry.h"
#include "report/json.h"
#include "report/text.h"

namespace plimsoll {

Result<Tuned> TuneFile(const WhatIfFlags& flags) {
  const Result<WhatIfOptions> options = flags.Options();
  if (!options) return options.error();
  const Result<std::string> file = RecordFile(flags.file);
  if (!file) return file.error();
  Progress progress("reading");
  const Result<Recording> recording = ReadFile(*file);
  if (!recording) return recording.error();
  progress.Next("analysing");
  const AnalysedRecording analysed = AnalyseRecording(*recording);
  const Result<ReplayableJob> job = PrepareJob(analysed, *options);
  if (!job) return job.error();
  std::once_flag begun;
  TuneReport report = TuneJob(*job, *options, [&](std::size_t, std::size_t total) {
    std::call_once(begun, [&] { progress.Next("replaying settings", total); });
    progress.Advance();
  });
  return Tuned{std::move(report), ScriptOf(job->trace->timeline.stacks)};
}

int ExitCodeOf(const TuneReport& report) {
  return report.result.rows[report.result.best].replayed.fits ? kFine : kNo;
}

namespace {

int RunTune(const WhatIfFlags& flags) {
  const Result<Tuned> tuned = TuneFile(flags);
  if (!tuned) return Complain(tuned.error());
  const TuneReport& report = tuned->report;
  const int printed = flags.json ? Print(TuneJson(report))
                                 : PrintWithNext(TuneText(report, StyleOfStdout()),
                                                 AfterTune(report, tuned->script, flags.gpu));
  return printed != kFine ? printed : ExitCodeOf(report);
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

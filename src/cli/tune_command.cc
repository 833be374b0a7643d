#include <memory>
#include <mutex>
#include <optional>

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
  const Result<WhatIfOptions> options = flags.Parse();
  if (!options) return Complain(options.error());
  const Result<Recording> recording = ReadFile(flags.file);
  if (!recording) return Complain(recording.error());
  const AnalysedRecording analysed(*recording);
  const Result<Job> job = PrepareJob(analysed, *options);
  if (!job) return Complain(job.error());
  std::optional<Progress> progress;
  std::once_flag begun;
  const TuneReport report = TuneJob(*job, *options, [&](std::size_t, std::size_t total) {
    std::call_once(begun, [&] { progress.emplace("settings", total); });
    progress->Advance();
  });
  progress.reset();
  const int printed = Print(flags.json ? TuneJson(report) : TuneText(report, StyleOfStdout()));
  if (printed != kFine) return printed;
  return report.result.rows[report.result.best].replayed.fits ? kFine : kNo;
}

}  // namespace

Command AddTune(CLI::App& app) {
  auto flags = std::make_shared<WhatIfFlags>();
  flags->AddTo(app);
  app.footer(
      "Examples:\n"
      "  plimsoll tune run.pickle                   the settings that hold least\n"
      "  plimsoll tune run.pickle --capacity 22GiB  those that fit on this card\n"
      "Exit code 1: nothing that was tried makes it fit.");
  return [flags] { return RunTune(*flags); };
}

}  // namespace plimsoll

#include <memory>
#include <optional>
#include <string>

#include "cli/command/command.h"
#include "cli/file_kind.h"
#include "cli/next_steps.h"
#include "cli/terminal/terminal.h"
#include "cli/what_if_flags.h"
#include "diagnose/script_of.h"
#include "diagnose/what_if.h"
#include "readers/registry.h"
#include "report/json.h"
#include "report/text.h"

namespace plimsoll {
namespace {

struct ReplayFlags {
  WhatIfFlags what_if;
  int every = 0;
  bool verify = false;
};

/// "step", or how many steps.
std::optional<Error> ReadEvery(const std::string& text, int& every) {
  const bool digits = text.find_first_not_of("0123456789") == text.npos && text.size() < 7;
  every = text == "step" ? 1 : digits && !text.empty() ? std::stoi(text) : 0;
  if (every > 0) return std::nullopt;
  return Error{.message = "'" + text + "' is neither 'step' nor a number of steps"};
}

int RunReplay(const ReplayFlags& flags) {
  Result<WhatIfOptions> options = flags.what_if.Options();
  if (!options) return Complain(options.error());
  options->empty_cache_every = flags.every;
  options->verify = flags.verify;
  if (flags.verify && (options->conf || flags.every > 0)) {
    return Complain({.message = "--verify compares with the record and takes no other settings",
                     .hint = "leave out --set and --empty-cache-every"});
  }
  const Result<std::string> file = RecordFile(flags.what_if.file);
  if (!file) return Complain(file.error());
  Progress progress("reading");
  const Result<Recording> recording = ReadFile(*file);
  if (!recording) return Complain(recording.error());
  progress.Next("analysing");
  const AnalysedRecording analysed = AnalyseRecording(*recording);
  const Result<ReplayableJob> job = PrepareJob(analysed, *options);
  if (!job) return Complain(job.error());
  progress.Next("replaying and packing");
  Result<ReplayReport> report = ReplayJob(*job, *options);
  if (!report) return Complain(report.error());
  if (flags.verify) report->replayed.counters = job->verified().counters;
  const int printed =
      flags.what_if.json
          ? Print(ReplayJson(*report, flags.verify))
          : PrintWithNext(ReplayText(*report, flags.verify, StyleOfStdout()),
                          flags.verify || *file == "-"
                              ? std::vector<NextStep>{}
                              : AfterReplay(*report, ScriptOf(job->trace->timeline.stacks),
                                            flags.what_if.LimitWords()));
  if (printed != kFine) return printed;
  const bool same = job->verified().Exact() && job->verified().final_block_differences == 0 &&
                    report->replayed.counters.peak_reserved == report->recorded_peak_reserved;
  const bool good = flags.verify ? same : report->replayed.fits;
  return good && !report->fault ? kFine : kNo;
}

}  // namespace

Command AddReplay(Flags& declare) {
  auto flags = std::make_shared<ReplayFlags>();
  declare.Repeated("--set", "CONF",
                   "settings to try, as in PYTORCH_CUDA_ALLOC_CONF; \"\" for the defaults. Again "
                   "for more of them",
                   [flags](const std::string& text) { return flags->what_if.AddSettings(text); });
  declare.Value("--empty-cache-every", "step|N",
                "call torch.cuda.empty_cache() after every step, or every so many",
                [flags](const std::string& text) { return ReadEvery(text, flags->every); });
  declare.Switch("--verify", flags->verify,
                 "compare every address and every call to the driver with the record");
  flags->what_if.AddTo(declare);
  declare.Examples(
      "  plimsoll replay run.pickle --set expandable_segments:True   with other settings\n"
      "  plimsoll replay run.pickle --gpu RTX4090   would it fit on that card?\n"
      "  plimsoll replay run.pickle --capacity 22GiB   would it fit in this much?\n"
      "  plimsoll replay run.pickle --limit 20GiB --set garbage_collection_threshold:0.6\n"
      "  plimsoll replay run.pickle --torch 2.15   in another release\n"
      "  plimsoll replay run.pickle --verify   does the model decide as PyTorch did?\n"
      "Exit code 1: it does not fit, or the model differs from the record.");
  return [flags] { return RunReplay(*flags); };
}

}  // namespace plimsoll

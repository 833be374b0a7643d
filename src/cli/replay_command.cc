#include <memory>
#include <optional>
#include <string>

#include "cli/command.h"
#include "cli/terminal.h"
#include "cli/what_if_flags.h"
#include "diagnose/what_if.h"
#include "readers/registry.h"
#include "report/json.h"
#include "report/text.h"

namespace plimsoll {
namespace {

struct ReplayFlags {
  WhatIfFlags what_if;
  std::string empty_cache_every;
  bool verify = false;
};

/// "step", or how many steps.
Result<int> ParseEvery(const std::string& text) {
  if (text.empty()) return 0;
  if (text == "step") return 1;
  const bool number = text.find_first_not_of("0123456789") == text.npos && text.size() < 7;
  if (number && std::stoi(text) > 0) return std::stoi(text);
  return Error{.message =
                   "--empty-cache-every takes 'step' or a number of steps, not '" + text + "'"};
}

int RunReplay(const ReplayFlags& flags) {
  Result<WhatIfOptions> options = flags.what_if.Parse();
  if (!options) return Complain(options.error());
  const Result<int> every = ParseEvery(flags.empty_cache_every);
  if (!every) return Complain(every.error());
  options->empty_cache_every = *every;
  options->verify = flags.verify;
  if (flags.verify && (options->conf || *every > 0)) {
    return Complain({.message = "--verify compares with the record and takes no other settings",
                     .hint = "leave out --set and --empty-cache-every"});
  }
  const Result<Recording> recording = ReadFile(flags.what_if.file);
  if (!recording) return Complain(recording.error());
  const AnalysedRecording analysed(*recording);
  const Result<Job> job = PrepareJob(analysed, *options);
  if (!job) return Complain(job.error());
  Result<ReplayReport> report = ReplayJob(*job, *options);
  if (!report) return Complain(report.error());
  if (flags.verify) report->replayed.counters = job->verified().counters;
  const int printed =
      Print(flags.what_if.json ? ReplayJson(*report, flags.verify)
                               : ReplayText(*report, flags.verify, StyleOfStdout()));
  if (printed != kFine) return printed;
  const bool same = job->verified().Exact() && job->verified().final_block_differences == 0 &&
                    report->replayed.counters.peak_reserved == report->recorded_peak_reserved;
  const bool good = flags.verify ? same : report->replayed.fits;
  return good && !report->fault ? kFine : kNo;
}

}  // namespace

Command AddReplay(CLI::App& app) {
  auto flags = std::make_shared<ReplayFlags>();
  flags->what_if.AddTo(app);
  app.add_flag("--verify", flags->verify,
               "compare every address and every call to the driver with the record");
  app.add_option("--set", flags->what_if.conf,
                 "settings to try, as in PYTORCH_CUDA_ALLOC_CONF; \"\" for the defaults")
      ->type_name("CONF");
  app.add_option("--empty-cache-every", flags->empty_cache_every,
                 "call torch.cuda.empty_cache() after every step, or every so many")
      ->type_name("step|N");
  app.footer(
      "Examples:\n"
      "  plimsoll replay run.pickle --verify                  does the model decide as PyTorch "
      "did?\n"
      "  plimsoll replay run.pickle --set expandable_segments:True\n"
      "  plimsoll replay run.pickle --capacity 22GiB          would it fit on a smaller card?\n"
      "  plimsoll replay run.pickle --limit 20GiB --set garbage_collection_threshold:0.6\n"
      "  plimsoll replay run.pickle --torch 2.15              in another release\n"
      "Exit code 1: it does not fit, or the model differs from the record.");
  return [flags] { return RunReplay(*flags); };
}

}  // namespace plimsoll

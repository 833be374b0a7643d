// What to type after each answer, filled in with what the user typed and what the answer found. The
// only place that knows how the commands follow each other.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "answer/explanation.h"
#include "cli/script_flags.h"
#include "diagnose/diff.h"
#include "diagnose/what_if.h"
#include "hardware/gpu.h"
#include "report/next_step.h"

namespace plimsoll {

/// The job behind a record: what would train again.
struct JobCommand {
  std::vector<std::string> words = {};
  /// All of it is known, and not only the script's name.
  bool whole = false;
  /// "CUDA_VISIBLE_DEVICES=1" in front of it.
  std::vector<std::string> variables = {};
};

/// After `explain` and `run`: of the files that were explained.
std::vector<NextStep> AfterExplain(const Explanation& explanation,
                                   const std::vector<std::string>& files, const JobCommand& job);
/// After `run`, which has written a page.
std::vector<NextStep> AfterRun(const Explanation& explanation, const std::string& folder,
                               const std::vector<std::string>& command);
/// PyTorch was imported and CUDA never used: this machine may have no GPU.
std::vector<NextStep> AfterUnrecordedRun(const std::vector<std::string>& command);
/// What the log or the record that is shown says was run.
JobCommand JobBehind(const Explanation& explanation);
/// The same job in the place of the stand-in of what to record next.
void NameJob(const JobCommand& job, Explanation& explanation);

/// Where a step comes from, and what is asked about it, as flags of predict and plan.
struct StepQuestion {
  std::vector<std::string> files;
  ScriptFlags script;
  std::optional<std::pair<std::int64_t, std::int64_t>> batches;
  /// Of snapshots, as --points takes them; empty where there are none.
  std::string points = {};
  /// Of snapshots, the one that the step follows.
  std::string record = {};
  std::optional<std::int64_t> sequence;
  Gpu gpu;
  std::optional<Bytes> limit;
  std::string torch;
  /// Set levers, "tf32=on" each, and further flags of predict alone.
  std::vector<std::string> levers;
  std::vector<std::string> more;
};

struct PredictOutcome {
  bool fits = false;
  bool surely = false;
  /// Each step leaves something behind, which ends the job: no plan helps against that.
  bool grows = false;
  /// The largest batch was asked for.
  bool largest = false;
  /// The longest was.
  bool longest = false;
  /// What another batch takes is not known.
  bool one_batch = false;
  std::int64_t batch = 0;
  /// In each step of the optimizer, of one GPU.
  std::int64_t samples = 0;
  /// Of a job on several GPUs, how many; 0 where that is not told.
  std::int64_t ranks = 1;
  /// What the script trains with as it is typed, where the command has no {batch}.
  std::optional<std::int64_t> own_batch = {};
};
std::vector<NextStep> AfterPredict(const StepQuestion& asked, const PredictOutcome& outcome);

/// A way of a plan: what it sets, "tf32=on" each.
struct PlannedChange {
  std::vector<std::string> levers = {};
  /// Samples of one pass, and passes of one step of the optimizer.
  std::int64_t batch = 0;
  std::int64_t passes = 1;
  /// The script accumulates already: its two numbers are edited.
  bool own_accumulation = false;
  /// Lines of the script between backward() and optimizer.step() that use gradients.
  std::vector<std::string> before_step = {};
  /// The script has a gradient scaler.
  bool scales = false;
};
/// What to write into the script, so that it trains by the first way of a plan.
std::vector<NextStep> ApplyPlan(const std::string& file, const PlannedChange& first);

struct PlanOutcome {
  /// Nothing where none fits.
  std::optional<PlannedChange> first = {};
  std::int64_t samples = 0;
  std::int64_t gpus = 1;
  std::int64_t nodes = 1;
  bool keep_numerics = false;
  /// Where nothing fits: a card that would hold it.
  std::optional<Gpu> larger = {};
};
std::vector<NextStep> AfterPlan(const StepQuestion& asked, const PlanOutcome& outcome);

/// `script`: what made the record, or nothing.
std::vector<NextStep> AfterTune(const TuneReport& report, const std::string& script,
                                const std::optional<Gpu>& gpu);
std::vector<NextStep> AfterReplay(const ReplayReport& report, const std::string& script,
                                  const std::vector<std::string>& limits);
std::vector<NextStep> AfterDiff(const std::vector<std::string>& before,
                                const std::vector<std::string>& after);
/// Of a record; a table of buffers has no next step.
std::vector<NextStep> AfterPack(const std::string& file);
/// Where no process tells what PyTorch has.
std::vector<NextStep> AfterWatch();

/// A size as flags take it, to the byte: "22.00GiB", "11436MiB".
std::string SizeWord(Bytes bytes);
/// As --gpu takes it.
std::string GpuWord(const Gpu& gpu);

}  // namespace plimsoll

#include <memory>

#include "base/input.h"
#include "cli/command.h"
#include "cli/shared_flags.h"
#include "cli/terminal.h"
#include "plan/planned_run.h"
#include "plan/search.h"
#include "report/plan.h"
#include "report/plan_page.h"
#include "step/calibration.h"
#include "step/file/step_file.h"
#include "step/max_batch.h"
#include "step/predicted_history.h"

namespace plimsoll {
namespace {

struct PlanFlags {
  std::string file;
  std::optional<Gpu> gpu;
  std::optional<std::int64_t> samples;
  std::optional<Bytes> budget;
  std::optional<TorchVersion> torch;
  bool keep_numerics = false;
  bool explain = false;
  bool json = false;
  std::optional<std::string> html;
};

/// What is drawn comes with its ranges, the frontier too.
std::optional<Error> MakeWhole(const PlanJob& job, std::vector<Outcome>& outcomes) {
  Evaluator evaluator(job);
  for (Outcome& outcome : outcomes) {
    Result<Outcome> whole = evaluator.EvaluateWhole(outcome.choice);
    if (!whole) return whole.error();
    outcome = std::move(*whole);
  }
  return std::nullopt;
}

/// The same answer as a page, with the run of its first way.
int WritePage(const std::string& path, const PlanJob& job, Plan plan) {
  const Progress progress("predicting what is drawn");
  if (const std::optional<Error> error = MakeWhole(job, plan.frontier)) return Complain(*error);
  const Result<PlannedRun> run = RunOf(job, ShownWay(plan).choice);
  if (!run) return Complain(run.error());
  const Result<Prediction> prediction = Predict(run->step, job.gpu, run->options);
  if (!prediction) return Complain(prediction.error());
  const Result<History> history = PredictedHistory(run->step, job.gpu, run->options);
  if (!history) return Complain(history.error());
  return WriteOut(path, PageHtml(PlanPage(job, plan, *prediction, *history, run->passes)));
}

int RunPlan(const PlanFlags& flags) {
  if (!flags.samples) {
    return Complain(Error{.message = "how many samples are in a step of the optimizer?",
                          .hint = "give --global-batch N; the planner finds in how many passes"});
  }
  Progress progress("reading");
  const Result<Input> input = Input::Open(flags.file);
  if (!input) return Complain(input.error());
  const Result<Step> step = ReadStep(*input);
  if (!step) return Complain(step.error());
  const Result<Gpu> gpu = flags.gpu ? Result<Gpu>(*flags.gpu) : FindGpu(step->gpu);
  if (!gpu) return Complain(gpu.error());
  const PlanJob job{.step = *step,
                    .gpu = *gpu,
                    .options = {.torch = flags.torch,
                                .calibration = Calibration::BuiltIn(gpu->name),
                                .limit = flags.budget},
                    .samples = *flags.samples,
                    .keep_numerics = flags.keep_numerics};
  progress.Next("trying ways to train");
  const Result<Plan> plan = FindPlan(job);
  if (!plan) return Complain(plan.error());
  const int printed = Print(flags.json ? PlanJson(job, *plan)
                                       : PlanText(job, *plan, flags.explain, StyleOfStdout()));
  if (printed != kFine) return printed;
  if (flags.html) {
    const int written = WritePage(*flags.html, job, *plan);
    if (written != kFine) return written;
  }
  return plan->ways.empty() ? kNo : kFine;
}

}  // namespace

Command AddPlan(Flags& declare) {
  auto flags = std::make_shared<PlanFlags>();
  declare.Argument("STEP", flags->file, "a step file, made by plimsoll.capture");
  AddGpuFlag(declare, flags->gpu, "the card, or its memory; that of the capture unless given");
  declare.Count("--global-batch", "N", flags->samples,
                "samples in each step of the optimizer, in as many passes as it takes", 1,
                kLargestBatch);
  AddRoomFlag(
      declare, "--budget", flags->budget,
      "what PyTorch may hold of the card, as set_per_process_memory_fraction allows (20GiB)");
  declare.Switch("--keep-numerics", flags->keep_numerics,
                 "only what gives the same results: no other precision, no fused optimizer");
  declare.Switch("--explain", flags->explain,
                 "also what each lever is worth, alone and in the first way");
  AddTorchFlag(declare, flags->torch, "the release that will train (2.11)");
  declare.Switch("--json", flags->json, "one JSON document (docs/json.md)");
  declare.Text("--html", "FILE", flags->html,
               "also a page: memory against time, each point a way, with the lines to type");
  declare.Examples(
      "  plimsoll plan job.step.json.gz --gpu 4090 --global-batch 64   the fastest ways that fit\n"
      "  plimsoll plan job.step.json.gz --gpu 4090 --global-batch 64 --keep-numerics\n"
      "  plimsoll plan job.step.json.gz --gpu 4090 --global-batch 64 --html plan.html   as a page "
      "too\n"
      "Exit code 1: nothing that was tried fits for certain.");
  return [flags] { return RunPlan(*flags); };
}

}  // namespace plimsoll

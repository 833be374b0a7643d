#include <memory>

#include "base/input.h"
#include "cli/command.h"
#include "cli/script_flags.h"
#include "cli/shared_flags.h"
#include "cli/terminal.h"
#include "cli/tune_command.h"
#include "plan/planned_run.h"
#include "plan/search.h"
#include "readers/registry.h"
#include "report/json.h"
#include "report/plan.h"
#include "report/plan_page.h"
#include "report/text.h"
#include "step/answer/max_batch.h"
#include "step/answer/predict.h"
#include "step/answer/predicted_history.h"
#include "step/file/step_file.h"

namespace plimsoll {
namespace {

struct PlanFlags {
  std::vector<std::string> files;
  ScriptFlags script;
  std::optional<std::pair<std::int64_t, std::int64_t>> batches;
  std::optional<Gpu> gpu;
  std::optional<std::int64_t> samples;
  std::optional<std::int64_t> gpus;
  std::optional<std::int64_t> nodes;
  std::optional<Bytes> budget;
  std::optional<TorchVersion> torch;
  bool keep_numerics = false;
  bool explain = false;
  bool json = false;
  std::optional<std::string> html;
};

/// What is drawn comes with its ranges, the frontier too.
std::optional<Error> MakeWhole(const PlanJob& job, std::vector<Way>& outcomes) {
  Evaluator evaluator(job);
  for (Way& outcome : outcomes) {
    Result<Way> whole = evaluator.EvaluateWhole(outcome.choice);
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
  const Result<Trial> trial = Trial::Of(run->setting);
  if (!trial) return Complain(trial.error());
  return WriteOut(
      path, PageHtml(PlanPage(job, plan, Predict(*trial), PredictedHistory(*trial), run->passes)));
}

constexpr std::string_view kOfARecord =
    "\nThis is a recorded run: the allocator's settings are all that can be planned from it. A "
    "captured\n"
    "step (docs/capture.md) adds precision, batch and passes, checkpointing, the optimizer and "
    "several\n"
    "GPUs, with times; two snapshots at two batch sizes say which batch fits (plimsoll predict).\n";

/// As far as a recorded run allows; `not_a_step` where it is none either.
int PlanFromRecord(const PlanFlags& flags, const Error& not_a_step) {
  if (flags.script.run || !ReadFile(flags.files[0])) return Complain(not_a_step);
  const Result<TuneReport> report = TuneFile({.file = flags.files[0],
                                              .gpu = flags.gpu,
                                              .limit = flags.budget,
                                              .torch = flags.torch,
                                              .json = flags.json});
  if (!report) return Complain(report.error());
  const int printed =
      Print(flags.json ? TuneJson(*report)
                       : TuneText(*report, StyleOfStdout()) + std::string(kOfARecord));
  return printed != kFine ? printed : ExitCodeOf(*report);
}

/// Those of a node are joined by links of their own.
int NodeSize(const PlanFlags& flags) {
  return static_cast<int>(flags.gpus.value_or(Cluster{}.gpus_in_a_node));
}

Result<Step> StepOf(const PlanFlags& flags) {
  const auto read = [](const std::string& file) -> Result<Step> {
    const Result<Input> input = Input::Open(file);
    if (!input) return input.error();
    return ReadStep(*input);
  };
  if (!flags.script.run) return read(flags.files[0]);
  const Result<CapturedStep> captured =
      CapturedStep::Of(flags.script, flags.batches, flags.gpu ? flags.gpu->name : "");
  if (!captured) return captured.error();
  return read(captured->path());
}

int RunPlan(const PlanFlags& flags) {
  if (const auto error = CheckSource(flags.script, flags.files)) return Complain(*error);
  if (flags.files.size() > 1) {
    return Complain({.message = fmt::format("{} files are given", flags.files.size()),
                     .hint = "give one step file, or one memory snapshot"});
  }
  Progress progress(flags.script.run ? "running the script on tensors without memory" : "reading");
  const Result<Step> step = StepOf(flags);
  if (!step) return PlanFromRecord(flags, step.error());
  const Result<Gpu> gpu = flags.gpu ? Result<Gpu>(*flags.gpu) : FindGpu(step->gpu);
  if (!gpu) return Complain(gpu.error());
  PlanJob job{.step = *step,
              .gpu = *gpu,
              .options = {.torch = flags.torch,
                          .calibration = Calibration::BuiltIn(gpu->name),
                          .limit = flags.budget,
                          .cluster = {.gpus_in_a_node = NodeSize(flags)}},
              .samples = flags.samples.value_or(1),
              .samples_by_default = !flags.samples,
              .gpus = flags.gpus.value_or(1) * flags.nodes.value_or(1),
              .nodes = flags.nodes.value_or(1),
              .keep_numerics = flags.keep_numerics};
  if (job.samples_by_default) {
    progress.Next("finding how many samples fit");
    const Result<std::int64_t> samples = DefaultSamples(job);
    if (!samples) return Complain(samples.error());
    job.samples = *samples * job.gpus;
  }
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
  declare.Arguments(
      "STEP", flags->files,
      "a step file, made by plimsoll.capture; or a memory snapshot, for the allocator's settings",
      /*required=*/false);
  flags->script.AddTo(declare);
  declare.Value("--batches", "N,M", "with --run: the batch sizes to capture, 4,8 unless given",
                [flags](const std::string& text) { return ReadBatches(text, flags->batches); });
  AddGpuFlag(declare, flags->gpu, "the card, or its memory; that of the capture unless given");
  declare.Count("--global-batch", "N", flags->samples,
                "samples in each step of the optimizer, in as many passes as it takes; unless "
                "given, the largest power of two that fits in one",
                1, kLargestBatch);
  declare.Count("--gpus", "N", flags->gpus, "so many of the card in each machine", 1, 1024);
  declare.Count("--nodes", "N", flags->nodes, "so many machines", 1, 4096);
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
      "  plimsoll plan --run --gpu 4090 -- python train.py --batch-size {batch}   your script, "
      "unedited\n"
      "Exit code 1: nothing that was tried fits for certain.");
  return [flags] { return RunPlan(*flags); };
}

}  // namespace plimsoll

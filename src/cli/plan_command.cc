#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <memory>

#include "cli/calibration_flag.h"
#include "cli/command/command.h"
#include "cli/command/command_text.h"
#include "cli/command/shared_flags.h"
#include "cli/file_kind.h"
#include "cli/next_steps.h"
#include "cli/script_flags.h"
#include "cli/terminal/terminal.h"
#include "cli/tune_command.h"
#include "job/answer/max_batch.h"
#include "job/answer/predict.h"
#include "job/answer/predicted_history.h"
#include "job/transforms/gradient_uses.h"
#include "plan/planned_run.h"
#include "plan/search.h"
#include "report/format/layout.h"
#include "report/json.h"
#include "report/plan.h"
#include "report/plan_page.h"
#include "report/text.h"

namespace plimsoll {
namespace {

/// For the search, unless --seconds says otherwise.
constexpr std::int64_t kSeconds = 20;

struct PlanFlags {
  std::vector<std::string> files;
  ScriptFlags script;
  std::optional<std::pair<std::int64_t, std::int64_t>> batches;
  std::optional<Gpu> gpu;
  std::optional<Bytes> beside;
  std::optional<std::int64_t> samples;
  std::optional<std::int64_t> gpus;
  std::optional<std::int64_t> nodes;
  std::optional<Bytes> budget;
  std::optional<std::int64_t> seconds;
  std::optional<TorchVersion> torch;
  std::optional<std::string> calibration;
  bool keep_numerics = false;
  bool explain = false;
  bool json = false;
  bool allow_unknown = false;
  std::optional<std::string> html;
};

/// The same answer as a page, with the run of its first way.
int WritePage(const std::string& path, const PlanRequest& request, const Plan& plan) {
  const Progress progress("predicting what is drawn");
  const Result<PlannedRun> run = RunOf(request, plan.Shown().choice);
  if (!run) return Complain(run.error());
  const Result<Trial> trial = Trial::Of(run->setting);
  if (!trial) return Complain(trial.error());
  return WriteOut(path, PageHtml(PlanPage(request, plan, Predict(*trial), PredictedHistory(*trial),
                                          run->micro_batches)));
}

constexpr std::string_view kOfARecord =
    "This is a recorded run: the allocator's settings are all that can be planned from it. A "
    "captured step (docs/capture.md) adds precision, batch and passes, checkpointing, the "
    "optimizer and several GPUs, with times; two snapshots at two batch sizes say which batch fits "
    "(plimsoll predict).";

/// The settings that were tried, and what a captured step would add.
std::string TextOfRecord(const TuneReport& report, const TextStyle& style) {
  const auto width = static_cast<std::size_t>(style.width);
  return fmt::format("{}\n{}\n", TuneText(report, style),
                     fmt::join(WrapText(kOfARecord, width), "\n"));
}

/// As far as a recorded run allows.
int PlanFromRecord(const PlanFlags& flags) {
  const Result<Tuned> tuned = TuneFile({.file = flags.files[0],
                                        .gpu = flags.gpu,
                                        .limit = flags.budget,
                                        .torch = flags.torch,
                                        .json = flags.json});
  if (!tuned) return Complain(tuned.error());
  const TuneReport& report = tuned->report;
  const int printed = flags.json ? Print(TuneJson(report))
                                 : PrintWithNext(TextOfRecord(report, StyleOfStdout()),
                                                 AfterTune(report, tuned->script, flags.gpu));
  return printed != kFine ? printed : ExitCodeOf(report);
}

/// Those of a node are joined by links of their own.
int NodeSize(const PlanFlags& flags) {
  return static_cast<int>(flags.gpus.value_or(Cluster{}.gpus_in_a_node));
}

/// What does not go together, and what cannot be planned from.
std::optional<Error> Contradiction(const PlanFlags& flags) {
  if (auto error = CheckSource(flags.script, flags.files)) return error;
  if (flags.files.size() > 1) {
    return Error{.message = fmt::format("{} files are given", flags.files.size()),
                 .hint = "give one step file, or one memory snapshot"};
  }
  std::vector<std::string> inputs = flags.files;
  inputs.insert(inputs.end(), flags.script.command.begin(), flags.script.command.end());
  if (flags.script.keep) inputs.push_back(*flags.script.keep);
  if (auto error = CheckOutput("--html", flags.html, inputs)) return error;
  if (flags.script.run) return std::nullopt;
  const std::string& file = flags.files[0];
  std::vector<FileKind> taken = {FileKind::kStep, FileKind::kConfiguration, FileKind::kTrace,
                                 FileKind::kRunFolder};
  if (!IsPlainText(file)) taken.push_back(FileKind::kText);
  std::optional<Error> wrong = WrongKind(file, taken, "a captured step");
  if (wrong && KindOf(file) == FileKind::kScript) {
    wrong->hint = CommandText("plan").Flag("--run").Plain("--").Words({"python", file}).str();
  }
  return wrong;
}

bool IsRecord(const PlanFlags& flags) {
  if (flags.script.run) return false;
  const FileKind kind = KindOf(flags.files[0]);
  return kind == FileKind::kTrace || kind == FileKind::kRunFolder;
}

Result<Job> JobOf(const PlanFlags& flags) {
  Result<Job> job = ReadOrCapture({.files = flags.files,
                                   .script = flags.script,
                                   .batches = flags.batches,
                                   .gpu = CapturedFor(flags.gpu),
                                   .every_precision = true});
  if (job && !Trains(job->variants.front())) {
    return Error{.message =
                     "the script trains nothing: it evaluates or generates, and a plan is "
                     "for training",
                 .file = job->file,
                 .hint = "plimsoll predict says what it takes, and which batch fits"};
  }
  if (job && !job->sequence.empty()) {
    return Error{.message = "a plan varies the batch, and the script was captured as it stands",
                 .file = job->file,
                 .hint =
                     "put {batch} where it takes its batch size from: python train.py "
                     "--batch-size {batch}"};
  }
  if (!job) return job;
  const std::optional<std::int64_t> length = LengthToPutAt(flags.script, flags.files, *job);
  return AtAskedLength(std::move(*job), length);
}

std::vector<NextStep> NextOf(const PlanFlags& flags, const PlanRequest& request, const Plan& plan) {
  const StepQuestion asked{.files = flags.files,
                           .script = flags.script,
                           .batches = flags.batches,
                           .sequence = flags.script.sequence,
                           .gpu = request.gpu,
                           .limit = flags.budget,
                           .torch = flags.torch ? flags.torch->ToText() : ""};
  PlanOutcome outcome{.samples = request.samples,
                      .gpus = request.gpus,
                      .nodes = request.nodes,
                      .keep_numerics = request.keep_numerics};
  if (plan.ways.empty()) {
    outcome.larger = plan.smallest_card;
    return AfterPlan(asked, outcome);
  }
  const Choice& first = plan.ways.front().choice;
  outcome.first = {.batch = first.batch,
                   .passes = MicroBatchesOf(request.job, first),
                   .own_accumulation = CapturedPasses(request.job) > 1};
  for (GradientUse& use : GradientUsesOf(request.job, request.job.variants.front())) {
    outcome.first->scales |= use.by_scaler;
    if (!use.by_scaler) outcome.first->before_step.push_back(std::move(use.at));
  }
  for (const auto& [lever, value] : first.set) {
    outcome.first->levers.push_back(lever + "=" + value.text());
  }
  return AfterPlan(asked, outcome);
}

/// Refers to the step.
PlanRequest JobOf(const PlanFlags& flags, const Job& job, const Gpu& gpu, Measured measured) {
  return {.job = job,
          .gpu = gpu,
          .options = {.torch = flags.torch,
                      .calibration = std::move(measured.operators),
                      .limit = flags.budget,
                      .cluster = {.gpus_in_a_node = NodeSize(flags)},
                      .host = measured.host},
          .samples = flags.samples.value_or(1),
          .samples_by_default = !flags.samples && !job.own_batch,
          .samples_of_script = !flags.samples && job.own_batch,
          .gpus = flags.gpus.value_or(1) * flags.nodes.value_or(1),
          .nodes = flags.nodes.value_or(1),
          .keep_numerics = flags.keep_numerics,
          .shows_all = flags.json || flags.html || flags.explain};
}

int RunPlan(const PlanFlags& flags) {
  if (const std::optional<Error> error = Contradiction(flags)) return Complain(*error);
  if (IsRecord(flags)) return PlanFromRecord(flags);
  Progress progress(flags.script.run ? "running the script on tensors without memory" : "reading");
  Result<Job> job = JobOf(flags);
  if (!job) return Complain(job.error());
  if (flags.calibration == kRulesAlone) job->asked = nullptr;
  Result<Gpu> gpu = flags.gpu ? Result<Gpu>(*flags.gpu) : FindGpu(job->gpu);
  if (gpu && flags.beside) gpu = Beside(*gpu, *flags.beside);
  if (!gpu) return Complain(gpu.error());
  Result<Measured> measured = ReadMeasured(flags.calibration, *gpu);
  if (!measured) return Complain(measured.error());
  PlanRequest request = JobOf(flags, *job, *gpu, std::move(*measured));
  if (request.samples_of_script) {
    request.samples = *job->own_batch * CapturedPasses(*job) * request.gpus;
  }
  request.out_of_time = [begin = std::chrono::steady_clock::now(), processor = std::clock(),
                         seconds = double(flags.seconds.value_or(kSeconds))] {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    // On a busy machine it gets the processor time that it would have had.
    return passed.count() >= seconds &&
           double(std::clock() - processor) / CLOCKS_PER_SEC >= seconds;
  };
  if (request.samples_by_default) {
    progress.Next("finding how many samples fit");
    const Result<std::int64_t> samples = DefaultSamples(request);
    if (!samples) return Complain(samples.error());
    request.samples = *samples * request.gpus;
  }
  progress.Next("trying configurations");
  request.progress = [&](std::size_t looked, std::size_t all) {
    progress.Next(
        fmt::format("trying configurations, {} of {} combinations of changes", looked, all));
  };
  const Result<Plan> plan = FindPlan(request);
  if (!plan) return Complain(plan.error());
  const int printed = flags.json
                          ? Print(PlanJson(request, *plan))
                          : PrintWithNext(PlanText(request, *plan, flags.explain, StyleOfStdout()),
                                          NextOf(flags, request, *plan));
  if (printed != kFine) return printed;
  if (flags.html) {
    const int written = WritePage(*flags.html, request, *plan);
    if (written != kFine) return written;
  }
  const FitDecision decision = plan->Verdict().decision;
  if (decision == FitDecision::kDoesNotFit) return kNo;
  return decision == FitDecision::kFits || flags.allow_unknown ? kFine : kUnknownAnswer;
}

}  // namespace

Command AddPlan(Flags& declare) {
  auto flags = std::make_shared<PlanFlags>();
  declare.Arguments(
      "STEP", flags->files,
      "a step file, made by plimsoll.capture; or hf:config.json, a Hugging Face model by its "
      "configuration; or a memory snapshot, for the allocator's settings",
      /*required=*/false);
  flags->script.AddTo(declare);
  declare.Value("--batches", "N,M", "with --run: the batch sizes to capture, 4,8 unless given",
                [flags](const std::string& text) { return ReadBatches(text, flags->batches); });
  AddGpuFlag(declare, flags->gpu, "the card, or its memory; that of the capture unless given");
  declare.Count(
      "--global-batch", "N", flags->samples,
      "samples in each step of the optimizer: micro-batch x accumulation x GPUs; unless given, "
      "the script's own, else the largest power of two that fits in one micro-batch",
      1, kLargestBatch);
  AddRoomFlag(declare, "--beside", flags->beside, "what other processes hold of the card (70GiB)");
  declare.Count("--gpus", "N", flags->gpus, "so many of the card in each machine", 1, 1024);
  declare.Count("--nodes", "N", flags->nodes, "so many machines", 1, 4096);
  AddRoomFlag(
      declare, "--budget", flags->budget,
      "what PyTorch may hold of the card, as set_per_process_memory_fraction allows (20GiB)");
  declare.Switch("--keep-numerics", flags->keep_numerics,
                 "only what gives the same results: no other precision, no fused optimizer");
  declare.Count("--seconds", "N", flags->seconds,
                "when the search ends, if it has not by then: 20 unless given; the answer says so",
                1, 86400);
  declare.Switch("--explain", flags->explain,
                 "also what each lever is worth, alone and in the first way");
  AddTorchFlag(declare, flags->torch, "the release that will train (2.11)");
  declare.Text("--calibration", "FILE", flags->calibration,
               "what plimsoll.calibrate measured on the card and its machine; none; rules: the "
               "rules alone");
  declare.Switch("--json", flags->json, "one JSON document (docs/json.md)");
  AddAllowUnknown(declare, flags->allow_unknown);
  declare.Text(
      "--html", "FILE", flags->html,
      "also a page: memory against time, each point a configuration, with the lines to type");
  declare.Examples(
      "  plimsoll plan job.step.json.gz --gpu 4090 --global-batch 64   the fastest ways that fit\n"
      "  plimsoll plan job.step.json.gz --gpu 4090 --global-batch 64 --keep-numerics\n"
      "  plimsoll plan job.step.json.gz --gpu 4090 --global-batch 64 --html plan.html   as a page "
      "too\n"
      "  plimsoll plan --run --gpu 4090 -- python train.py --batch-size {batch}   your script, "
      "unedited\n"
      "Exit code 1: no configuration fits for certain, or each runs out after some steps; 3: "
      "unknown, "
      "since a part of the job was not followed.");
  return [flags] { return RunPlan(*flags); };
}

}  // namespace plimsoll

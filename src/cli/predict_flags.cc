#include "cli/predict_flags.h"

#include <fmt/format.h>

#include "base/parallel.h"
#include "cli/calibration_flag.h"
#include "cli/command/command_text.h"
#include "cli/command/shared_flags.h"
#include "cli/file_kind.h"
#include "cli/prices.h"
#include "cli/recorded_job.h"
#include "cli/terminal/terminal.h"
#include "files/input.h"
#include "job/answer/max_batch.h"
#include "job/file/at_length.h"
#include "plan/lever.h"
#include "plan/planned_run.h"

namespace plimsoll {
namespace {

std::optional<Error> ReadCard(const std::string& text, PredictFlags& to) {
  to.any_gpu = text == "any";
  if (to.any_gpu) return std::nullopt;
  Result<Gpu> gpu = FindGpu(text);
  if (!gpu) return gpu.error();
  to.gpu = std::move(*gpu);
  return std::nullopt;
}

/// Of snapshots at several points of batch and length: before any of them is read.
std::optional<Error> WrongPoints(const PredictFlags& flags) {
  if (flags.points.empty()) return std::nullopt;
  if (flags.script.run || flags.batches) {
    return Error{.message =
                     "--points are those of recorded runs: they go with neither --run nor "
                     "--batches",
                 .hint = "leave --points out, or give a snapshot for each"};
  }
  if (flags.files.size() != flags.points.size()) {
    return Error{.message = fmt::format("{} file{} and {} point{} are given", flags.files.size(),
                                        flags.files.size() == 1 ? "" : "s", flags.points.size(),
                                        flags.points.size() == 1 ? "" : "s"),
                 .hint = "give one snapshot for each of --points, in their order"};
  }
  if (flags.points.size() < 3) {
    return Error{
        .message = "batch and length need three snapshots or more",
        .hint = "add one at another length; two at two batch sizes go with --batches 8,16"};
  }
  const std::int64_t length = flags.points.front()[1];
  const auto is_it = [&](const Extent& point) { return point[1] == length; };
  if (!std::ranges::all_of(flags.points, is_it)) return std::nullopt;
  return Error{.message = fmt::format("all of --points have length {}", length),
               .hint =
                   "add a snapshot at another length; two at two batch sizes go with --batches "
                   "8,16"};
}

/// What does not go together.
std::optional<Error> Contradiction(const PredictFlags& flags) {
  if (std::optional<Error> error = CheckSource(flags.script, flags.files)) return error;
  if (flags.html && flags.events) {
    return Error{
        .message = "--events prints requests instead of an answer, and --html a page of it",
        .hint = "give one of them"};
  }
  if (flags.snapshot && (flags.events || *flags.snapshot == "-")) {
    return Error{.message = flags.events
                                ? "--events prints requests instead of an answer, and --snapshot "
                                  "writes the run of one"
                                : "--snapshot needs a file: the answer goes to standard output",
                 .hint = flags.events ? "give one of them" : "give a name: --snapshot run.pickle"};
  }
  if (!flags.prices.empty() && !flags.any_gpu) {
    return Error{.message = "--price is for --gpu any, which compares cards",
                 .hint = "give --gpu any, or leave the price out"};
  }
  if (flags.any_gpu && (flags.max_batch || flags.max_length || flags.max_tokens || flags.html ||
                        flags.snapshot || flags.events || flags.share)) {
    return Error{.message = "--gpu any says on which cards one batch fits, and nothing else",
                 .hint = "name one card, or leave out what else is asked"};
  }
  if (flags.ddp && flags.choice.Sets(kParallelLever.name)) {
    return Error{.message = "--ddp and --fsdp or --mesh are two ways to train on several GPUs",
                 .hint = "give one of them"};
  }
  if (std::optional<Error> error = WrongPoints(flags)) return error;
  if (flags.files.size() > 2 && flags.points.empty()) {
    return Error{
        .message = fmt::format("{} files are given", flags.files.size()),
        .hint =
            "give one step file, two memory snapshots of the same job (--batches 8,16), or "
            "more with batch and length of each (--points 2x256,4x256,2x512)"};
  }
  std::vector<std::string> inputs = flags.files;
  inputs.insert(inputs.end(), flags.script.command.begin(), flags.script.command.end());
  if (flags.calibration) inputs.push_back(*flags.calibration);
  if (flags.script.keep) inputs.push_back(*flags.script.keep);
  if (auto error = CheckOutput("--snapshot", flags.snapshot, inputs)) return error;
  if (flags.snapshot && flags.html && *flags.snapshot == *flags.html) {
    return Error{.message = "--snapshot and --html name the same file",
                 .hint = "give each a name of its own"};
  }
  return CheckOutput("--html", flags.html, inputs);
}

/// A step file is one file; what else may have been given is told by its name.
std::optional<Error> NoStep(const std::string& file) {
  std::vector<FileKind> taken = {FileKind::kStep, FileKind::kConfiguration};
  if (!IsPlainText(file)) taken.push_back(FileKind::kText);
  std::optional<Error> wrong = WrongKind(file, taken, "a captured step");
  if (!wrong) return wrong;
  const FileKind kind = KindOf(file);
  if (kind == FileKind::kTrace || kind == FileKind::kRunFolder) {
    wrong->hint =
        "give two snapshots of the same job at two batch sizes (--batches 8,16), or the script: "
        "plimsoll predict --run -- python train.py";
  }
  if (kind == FileKind::kScript) wrong->hint = UsesOf(kind, file).back().command;
  return wrong;
}

Result<Job> ReadRecorded(const PredictFlags& flags) {
  const auto is_script = [](const std::string& file) { return KindOf(file) == FileKind::kScript; };
  if (std::ranges::any_of(flags.files, is_script)) {
    return Error{.message = "a script is run with --run, its command behind --",
                 .hint = CommandText("predict").Flag("--run").Plain("--").Words(flags.files).str()};
  }
  if (!flags.batches && flags.points.empty()) {
    return Error{.message = "two recorded runs need their batch sizes",
                 .hint = "give --batches 8,16, the smaller one first"};
  }
  // The allocator's settings are all that a recorded run can be given otherwise.
  const std::size_t settings = flags.choice.Sets(kAllocatorLever.name) ? 1 : 0;
  if (flags.Chosen().set.size() > settings) {
    return Error{.message = "a recorded run has the optimizer and the precision it was run with",
                 .hint =
                     "leave --checkpoint, --accumulate, --optimizer, --precision, --ddp and --fsdp "
                     "out, or capture the step"};
  }
  for (const std::string& file : flags.files) {
    const auto wrong = WrongKind(file, {FileKind::kTrace, FileKind::kText}, "a memory snapshot");
    if (wrong) return *wrong;
  }
  if (!flags.points.empty()) return ReadRecordedJob(flags.files, flags.points);
  return ReadRecordedJob(flags.files[0], flags.files[1], *flags.batches);
}

/// What the choice makes of a captured step: of one precision, or of all that can be changed so.
Result<Job> Changed(Job job, const Choice& choice, bool every_precision) {
  if (!every_precision) return JobOf(job, choice);
  KeepSuited(job, choice);
  if (std::optional<Error> error = Rewrite(job, choice)) return *error;
  return job;
}

/// Optimizers that torch itself makes; of others the calls of AdamW are replaced.
bool TorchMakes(std::string_view optimizer) {
  return optimizer == "adamw" || optimizer == "adam" || optimizer == "sgd" ||
         optimizer == "sgd_momentum";
}

/// What is captured, and what of the flags is to be changed about it.
struct ReadFilesResult {
  Job job;
  std::optional<Choice> choice;
};

Result<ReadFilesResult> ReadFiles(const PredictFlags& flags, std::optional<std::int64_t> around) {
  if (flags.files.size() >= 2) {
    Result<Job> recorded = ReadRecorded(flags);
    if (!recorded) return recorded.error();
    return ReadFilesResult{std::move(*recorded), std::nullopt};
  }
  StepRequest request{.files = flags.files,
                      .script = flags.script,
                      .batches = flags.batches,
                      .batch = flags.batch,
                      .gpu = CapturedFor(flags.gpu)};
  Choice choice = flags.Chosen();
  request.precision = choice.TextOf(kPrecisionLever.name);
  if (flags.script.run) {
    if (std::optional<Error> error = CheckFollowed(request.precision)) return *error;
  } else {
    if (std::optional<Error> error = NoStep(flags.files[0])) return *error;
    // A model that is made anew is made as it is asked for; the rest are levers.
    if (IsConfiguration(flags.files[0])) {
      request.over_lengths = flags.max_length;
      request.around = around;
      choice = choice.Without(kPrecisionLever.name);
      if (TorchMakes(choice.TextOf(kOptimizerLever.name))) {
        request.optimizer = choice.TextOf(kOptimizerLever.name);
        choice = choice.Without(kOptimizerLever.name);
      }
    }
  }
  Result<Job> job = ReadOrCapture(request);
  if (!job) return job.error();
  return ReadFilesResult{std::move(*job), std::move(choice)};
}

/// Of a job that trains nothing, what changes training is not asked.
std::optional<Error> CheckServes(const Choice& chosen, const Job& job) {
  if (Trains(job.variants.front())) return std::nullopt;
  for (const auto& [lever, value] : chosen.set) {
    if (lever == kAllocatorLever.name || lever == kPrecisionLever.name) continue;
    return Error{.message = fmt::format("the script trains nothing, and {} is about training: it "
                                        "evaluates or generates",
                                        lever),
                 .file = job.file,
                 .hint = "leave it out"};
  }
  return std::nullopt;
}

/// Copies the job for each kind of rank and changes it.
Result<JobForms> ChangedForms(const Job& job, const Choice& choice, bool every_precision) {
  JobForms forms;
  forms.ranks_of_each = RanksOfAStage(choice);
  forms.waiting = ShareOfWaiting(choice);
  std::vector<Choice> choices = ChoicesOfRanks(choice);
  if (choices.empty()) choices.push_back(choice);
  forms.jobs.resize(choices.size());
  std::vector<std::optional<Error>> errors(choices.size());
  ParallelFor(choices.size(), [&](std::size_t i) {
    Job copy = CopyOf(job, 0);
    copy.variants = job.variants;
    Result<Job> changed = Changed(std::move(copy), choices[i], every_precision);
    if (changed) {
      forms.jobs[i] = std::make_shared<const Job>(std::move(*changed));
    } else {
      errors[i] = changed.error();
    }
  });
  for (const std::optional<Error>& error : errors) {
    if (error) return *error;
  }
  return forms;
}

/// At the length that is asked about, changed as the flags say. The page shows every precision, and
/// a compiled job is shown beside itself in eager mode; anything else shows one.
Result<JobForms> AsAsked(const PredictFlags& flags, ReadFilesResult read) {
  if (read.choice) {
    if (std::optional<Error> error = CheckServes(*read.choice, read.job)) return *error;
  }
  const std::optional<std::int64_t> length = LengthToPutAt(flags.script, flags.files, read.job);
  Result<Job> job = AtAskedLength(std::move(read.job), length);
  if (!job) return job.error();
  if (!read.choice) return JobForms(std::make_shared<const Job>(std::move(*job)));
  const bool compiled = std::ranges::any_of(job->variants, &Variant::compiled);
  return ChangedForms(*job, *read.choice, compiled || flags.html);
}

/// The levers that change what a step does; the allocator's settings do not.
bool ChangesSteps(const Choice& choice) {
  return choice.set.size() > (choice.Sets(kAllocatorLever.name) ? 1u : 0u);
}

/// The job with the batches that its data make is what is meant, unless another batch is asked for,
/// or something that changes its steps.
bool AsksAsItStands(const PredictFlags& flags, const ReadFilesResult& read) {
  const std::shared_ptr<const Job>& own = read.job.as_it_stands;
  return own && !flags.max_batch && !flags.html && !ChangesSteps(flags.Chosen()) &&
         (!flags.batch || flags.batch == own->own_batch);
}

/// Of a job whose batches are those of its data.
std::optional<Error> CheckSequence(const PredictFlags& flags, const Job& job) {
  if (job.sequence.empty()) return std::nullopt;
  constexpr std::string_view kHint =
      "put {batch} where the script takes its batch size from: python train.py --batch-size "
      "{batch}";
  if (flags.max_batch || (flags.batch && flags.batch != job.own_batch)) {
    return Error{
        .message = fmt::format("the script's batch cannot be varied: it was captured as it "
                               "stands, with batches of {}",
                               job.own_batch.value_or(1)),
        .file = job.file,
        .hint = std::string(kHint)};
  }
  if (ChangesSteps(flags.Chosen()) || flags.html) {
    return Error{.message =
                     "the script was captured as it stands, each step with sizes of its own: "
                     "only settings of the allocator can be tried on it",
                 .file = job.file,
                 .hint = std::string(kHint)};
  }
  return std::nullopt;
}

/// Of a job that is known at one batch alone.
std::optional<Error> CheckOnlyBatch(const PredictFlags& flags, const Job& job) {
  const std::optional<std::int64_t> only = OnlyBatch(job);
  const bool asks_other =
      flags.max_batch || flags.max_tokens || (flags.batch && flags.batch != only);
  if (!only || !asks_other) return std::nullopt;
  return Error{.message = fmt::format("the batch cannot be varied: all records are at batch {}, "
                                      "and none tells what another takes",
                                      *only),
               .hint =
                   "ask with --length or --max-length alone, or add a snapshot at another batch "
                   "to --points"};
}

Result<Gpu> GpuOf(const PredictFlags& flags, const Job& job) {
  if (!flags.gpu && job.gpu.empty()) {
    return Error{.message = "which GPU?", .hint = "give --gpu; `plimsoll gpus` lists them"};
  }
  const Result<Gpu> gpu = flags.gpu ? Result<Gpu>(*flags.gpu) : FindGpu(job.gpu);
  return gpu && flags.beside ? Beside(*gpu, *flags.beside) : gpu;
}

Result<Card> CardOf(const PredictFlags& flags, const Job& job) {
  // Every card is asked about, and none of them is the one.
  if (flags.any_gpu) return Card{};
  Result<Gpu> gpu = GpuOf(flags, job);
  if (!gpu) return gpu.error();
  Result<Measured> measured = ReadMeasured(flags.calibration, *gpu);
  if (!measured) return measured.error();
  return Card{.gpu = std::move(*gpu), .measured = measured->operators, .host = measured->host};
}

/// Before a script is run for minutes.
Result<std::optional<ServedModel>> EngineOf(const PredictFlags& flags) {
  if (!flags.engine) return std::optional<ServedModel>();
  Result<ServedModel> model = ReadServedModel(*flags.engine);
  if (!model) return model.error();
  return std::optional<ServedModel>(std::move(*model));
}

std::optional<LengthDimension> LengthsOf(const PredictFlags& flags,
                                         std::shared_ptr<const Job> captured, Choice choice) {
  if (!captured) return std::nullopt;
  LengthDimension lengths{.name = NameOfLength(*captured), .captured = CapturedLengths(*captured)};
  lengths.at = [captured, choice = std::move(choice)](std::int64_t length) {
    return ChangedForms(AtLength(*captured, length).job, choice, /*every_precision=*/false);
  };
  const bool is_made = !flags.script.run && IsConfiguration(flags.files.front());
  if (is_made && flags.max_length) {
    lengths.captured_around = [flags](std::int64_t length) { return ReadQuestion(flags, length); };
  }
  return lengths;
}

/// Takes the job out as it was captured over lengths; null of any other.
Result<std::shared_ptr<const Job>> TakeCaptured(const PredictFlags& flags, Job& job) {
  if (!HasLength(job)) {
    if (!flags.max_length && !flags.max_tokens) return std::shared_ptr<const Job>();
    return Error{.message = "the job was captured at one length",
                 .file = job.file,
                 .hint =
                     "capture it over lengths: --max-length {length} behind --run, or "
                     "make_batch(batch_size, length) in plimsoll.capture"};
  }
  auto captured = std::make_shared<const Job>(std::move(job));
  job = CopyOf(*captured, 0);
  job.variants = captured->variants;
  return captured;
}

/// What is asked about a job that was read.
Question AskedAbout(const PredictFlags& flags, JobForms forms, Card card) {
  const Job& job = forms.first();
  const bool varies = job.sequence.empty() && !OnlyBatch(job);
  return Question{.job = forms,
                  .card = std::move(card),
                  .options = {.steps = flags.steps,
                              .torch = flags.torch,
                              .limit = flags.limit,
                              .host_room = flags.host},
                  .batch = flags.batch,
                  .at_largest = flags.max_batch,
                  .largest = flags.FindsLargest() && varies,
                  .longest = flags.max_length,
                  .most_tokens = flags.max_tokens,
                  .length_is_given = flags.script.length || flags.script.sequence,
                  .trade_offs = flags.html.has_value(),
                  .share = flags.share || flags.engine};
}

}  // namespace

Result<Question> ReadQuestion(const PredictFlags& flags, std::optional<std::int64_t> around) {
  if (const std::optional<Error> error = Contradiction(flags)) return *error;
  Result<std::optional<ServedModel>> engine = EngineOf(flags);
  if (!engine) return engine.error();
  Result<ReadFilesResult> read = ReadFiles(flags, around);
  if (!read) return read.error();
  const auto forget_cudnn = [&] {
    if (flags.calibration == kRulesAlone) read->job.asked = nullptr;
  };
  forget_cudnn();
  Result<std::shared_ptr<const Job>> captured = TakeCaptured(flags, read->job);
  if (!captured) return captured.error();
  if (AsksAsItStands(flags, *read)) {
    const Job& own = *read->job.as_it_stands;
    read->job = CopyOf(own, 0);
    forget_cudnn();
  }
  if (const std::optional<Error> error = CheckSequence(flags, read->job)) return *error;
  if (const std::optional<Error> error = CheckOnlyBatch(flags, read->job)) return *error;
  const Choice choice = read->choice.value_or(Choice{});
  Result<JobForms> forms = AsAsked(flags, std::move(*read));
  if (!forms) return forms.error();
  Result<Card> card = CardOf(flags, forms->first());
  if (!card) return card.error();
  Question question = AskedAbout(flags, std::move(*forms), std::move(*card));
  question.engine = std::move(*engine);
  question.lengths = LengthsOf(flags, std::move(*captured), choice);
  if (std::optional<Error> error = Configure(question.options, flags.Chosen())) return *error;
  return question;
}

Result<std::vector<Card>> ReadCards(const PredictFlags& flags) {
  std::vector<Card> cards;
  std::optional<Error> error;
  bool read = false;
  for (Gpu gpu : Gpus()) {
    // Parts of a card are asked for by their price only.
    if (gpu.slice && !flags.prices.contains(gpu.name)) continue;
    if (flags.beside) {
      // Others leave nothing of a small card.
      Result<Gpu> left = Beside(std::move(gpu), *flags.beside);
      if (!left) continue;
      gpu = std::move(*left);
    }
    // A file is of one card; what it says is of no use for others.
    Result<Measured> measured = ReadMeasured(flags.calibration, gpu);
    read = read || measured.ok();
    if (!measured) {
      error = measured.error();
      measured = ReadMeasured(std::nullopt, gpu);
    }
    cards.push_back({.gpu = gpu, .measured = measured->operators, .host = measured->host});
  }
  if (error && !read) return *error;
  return cards;
}

Choice PredictFlags::Chosen() const {
  return ddp ? choice.With(kParallelLever.name, DataParallelAsWritten()) : choice;
}

void PredictFlags::AddTo(Flags& flags) {
  flags.Arguments("STEP", files,
                  "a step file, made by plimsoll.capture; - is standard input. Or two memory "
                  "snapshots of the same job at two batch sizes, or more at several batches and "
                  "lengths. Or hf:config.json, a Hugging Face "
                  "model by its configuration",
                  /*required=*/false);
  script.AddTo(flags);
  flags.Value("--batches", "N,M",
              "the batch sizes of two snapshots (8,16); with --run, those to capture, 4,8 unless "
              "given",
              [this](const std::string& text) { return ReadBatches(text, batches); });
  flags.Value("--points", "BxL,...",
              "batch and length of each of three snapshots or more (2x256,4x256,2x512), in the "
              "order of the files",
              [this](const std::string& text) { return ReadPoints(text, points); });
  flags.Count("--batch", "N", batch, "the batch size; the largest that fits unless given", 1,
              kLargestBatch);
  flags.Switch("--max-batch", max_batch, "find the largest batch that fits, beside --batch too");
  flags.Switch("--max-length", max_length,
               "of a job over a length too, and with hf:NAME: find the longest that fits, at "
               "--batch");
  flags.Switch("--max-tokens", max_tokens,
               "likewise: the largest batch at each of several lengths, and where a step has most "
               "tokens");
  flags.Switch(
      "--data", script.data,
      "with --run: also all sizes of an epoch's batches, as the script's loader makes them");
  flags.Value("--gpu", "GPU",
              "the card: a name that `plimsoll gpus` lists, or its memory (22GiB); any: on which "
              "of them it fits; that of the capture unless given",
              [this](const std::string& text) { return ReadCard(text, *this); });
  flags.Repeated("--price", "GPU=AMOUNT",
                 "with --gpu any: what an hour of the card costs (\"RTX 4090=0.34\"), again for "
                 "each, or a file with such lines; the cheapest stands first",
                 [this](const std::string& text) { return ReadPrices(text, prices); });
  AddSettingTo(flags);
  flags.Switch("--share", share, "also what others may have of the card beside it");
  flags.Text("--engine", "FILE", engine,
             "with --share: the config.json of a model that an engine serves beside it");
  AddMachineTo(flags);
  flags.Switch("--json", json, "one JSON document (docs/json.md)");
  AddAllowUnknown(flags, allow_unknown);
  flags.Text("--html", "FILE", html,
             "also a page: the predicted run, and memory against time for other batches and "
             "precisions");
  flags.Text("--snapshot", "FILE", snapshot,
             "also the predicted run as a memory snapshot, as PyTorch writes them");
  flags.Switch("--events", events, "instead, every request to the allocator as a line of CSV");
}

void PredictFlags::AddSettingTo(Flags& flags) {
  const auto lever = [&](const std::string& name, const std::string& type, const PlanLever& of,
                         std::string_view prefix, const std::string& help) {
    flags.Value(name, type, help, [this, &of, prefix](const std::string& text) {
      return ReadSetting(fmt::format("{}={}{}", of.name, prefix, text), choice);
    });
  };
  lever("--checkpoint", "BLOCKS", kCheckpointingLever, "",
        "with activation checkpointing: all blocks, every:2, sqrt, or names of blocks "
        "(transformer.h.0,transformer.h.1)");
  lever("--accumulate", "N", kAccumulationLever, "",
        "micro-batches in each step of the optimizer, in place of the script's own number; the "
        "batch is that of one micro-batch");
  lever("--optimizer", "O", kOptimizerLever, "",
        "another optimizer than the captured one (sgd, adamw, adamw:fused, adam8bit, ...)");
  flags.Switch("--ddp", ddp, "as one rank of DistributedDataParallel; the batch is its own");
  lever("--fsdp", "N", kParallelLever, "fsdp:",
        "as one of N ranks of FSDP2, fully_shard on each block and on the whole; N:keep for "
        "reshard_after_forward=False (N:keep_last: of the last block alone), N:meta for a "
        "model built on the meta device, N:bf16 for MixedPrecisionPolicy(param_dtype=bf16, "
        "reduce_dtype=fp32), N:bf16:reduce_half where it reduces in bf16 too");
  lever("--mesh", "DIMENSIONS", kParallelLever, "mesh:",
        "as one rank of a mesh: fsdp=4,tensor=2:sequence,pipeline=2:8 (docs/predict.md, \"Several "
        "GPUs together\")");
  lever("--precision", "P", kPrecisionLever, "",
        "a precision that was captured too; of a script amp_bf16 (bf16 autocast)");
  lever("--alloc-conf", "CONF", kAllocatorLever, "", "what PYTORCH_CUDA_ALLOC_CONF will say");
  flags.Repeated("--set", "LEVER=VALUE",
                 "any lever that `plan` knows (docs/plan.md): tf32=on, parallel=ddp:4, ...; again "
                 "for each",
                 [this](const std::string& text) { return ReadSetting(text, choice); });
  AddRoomFlag(flags, "--limit", limit, "what set_per_process_memory_fraction will allow (20GiB)");
  AddRoomFlag(flags, "--beside", beside, "what other processes hold of the card (70GiB)");
}

void PredictFlags::AddMachineTo(Flags& flags) {
  AddRoomFlag(flags, "--host", host, "what the machine has for the job (64GiB)");
  AddTorchFlag(flags, torch, "the release that will train (2.11)");
  flags.Text("--calibration", "FILE", calibration,
             "what plimsoll.calibrate measured on the card and its machine; none; rules: the "
             "rules alone");
  flags.Count("--steps", "N", steps,
              "how many steps to run through the allocator (5, or the few that the job has)", 1,
              1000);
}

}  // namespace plimsoll

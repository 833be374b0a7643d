#include "cli/predict_flags.h"

#include <fmt/format.h>

#include "base/input.h"
#include "cli/recorded_step.h"
#include "step/file/step_file.h"
#include "step/transforms/changes.h"

namespace plimsoll {
namespace {

Result<PredictOptions> Parse(const PredictFlags& flags) {
  PredictOptions options{.steps = flags.steps, .precision = flags.precision, .conf = flags.conf};
  if (flags.limit) {
    const Result<Bytes> limit = ParseBytes(*flags.limit);
    if (!limit || *limit <= 0) {
      return Error{.message = fmt::format("--limit takes a size above 0, not '{}'", *flags.limit),
                   .hint = "for example 20GiB"};
    }
    options.limit = *limit;
  }
  if (flags.torch) {
    options.torch = ParseTorchVersion(*flags.torch);
    if (!options.torch) {
      return Error{.message = fmt::format("'{}' is no release of PyTorch", *flags.torch),
                   .hint = "write it as 2.11"};
    }
  }
  if (!flags.batch && !flags.max_batch) {
    return Error{.message = "which batch size?", .hint = "give --batch N, or --max-batch"};
  }
  return options;
}

/// What was measured on the GPU: a file's, or the program's own. `none` is for the rules alone.
Result<std::optional<Calibration>> ReadCalibration(const PredictFlags& flags) {
  std::optional<Calibration> read;
  if (!flags.calibration || *flags.calibration == "none") return read;
  const Result<Input> input = Input::Open(*flags.calibration);
  if (!input) return input.error();
  Result<Calibration> calibration = Calibration::Read(*input);
  if (!calibration) return calibration.error();
  read = std::move(*calibration);
  return read;
}

Result<Changes> ParseChanges(const PredictFlags& flags) {
  Changes changes{.optimizer = flags.optimizer, .data_parallel = flags.ddp};
  if (!flags.fsdp) return changes;
  if (flags.ddp) {
    return Error{.message = "--fsdp and --ddp are two ways to train on several GPUs",
                 .hint = "give one of them"};
  }
  const Result<Sharding> sharding = ParseSharding(*flags.fsdp);
  if (!sharding) return sharding.error();
  changes.sharding = *sharding;
  return changes;
}

Result<Step> ReadRecorded(const PredictFlags& flags, const Changes& changes) {
  if (flags.batches.size() != 2) {
    return Error{.message = "two recorded runs need their batch sizes",
                 .hint = "give --batches 8,16, the smaller one first"};
  }
  if (changes.Any() || flags.precision) {
    return Error{
        .message = "a recorded run has the optimizer and the precision it was run with",
        .hint = "leave --optimizer, --precision, --ddp and --fsdp out, or capture the step"};
  }
  return ReadRecordedStep(flags.files[0], flags.files[1], {flags.batches[0], flags.batches[1]});
}

Result<Step> ReadFiles(const PredictFlags& flags) {
  const Result<Changes> changes = ParseChanges(flags);
  if (!changes) return changes.error();
  if (flags.files.size() == 2) return ReadRecorded(flags, *changes);
  const Result<Input> input = Input::Open(flags.files[0]);
  if (!input) return input.error();
  Result<Step> step = ReadStep(*input);
  if (!step) return step;
  if (std::optional<Error> error = Apply(*step, *changes)) return *error;
  return step;
}

Result<Gpu> GpuOf(const PredictFlags& flags, const Step& step) {
  const std::string& name = !flags.gpu.empty() ? flags.gpu : step.gpu;
  if (name.empty()) {
    return Error{.message = "which GPU?", .hint = "give --gpu; `plimsoll gpus` lists them"};
  }
  return FindGpu(name);
}

}  // namespace

Result<std::unique_ptr<PredictJob>> ReadPredictJob(const PredictFlags& flags) {
  const Result<PredictOptions> options = Parse(flags);
  if (!options) return options.error();
  Result<Step> step = ReadFiles(flags);
  if (!step) return step.error();
  const Result<Gpu> gpu = GpuOf(flags, *step);
  if (!gpu) return gpu.error();
  Result<std::optional<Calibration>> calibration = ReadCalibration(flags);
  if (!calibration) return calibration.error();
  if (*calibration && (*calibration)->gpu() != gpu->name) {
    return Error{.message = fmt::format("it was measured on {}, not on {}", (*calibration)->gpu(),
                                        gpu->name),
                 .file = *flags.calibration,
                 .hint = "give the --gpu that it is for"};
  }
  auto job = std::make_unique<PredictJob>(
      PredictJob{std::move(*step), *gpu, std::move(*calibration), *options});
  job->options.batch = flags.batch.value_or(1);
  job->options.calibration = job->calibration    ? &*job->calibration
                             : flags.calibration ? nullptr
                                                 : Calibration::BuiltIn(gpu->name);
  return job;
}

void AddPredictFlags(CLI::App& app, PredictFlags& flags) {
  app.add_option("STEP", flags.files,
                 "a step file, made by plimsoll.capture; - is standard input. Or two memory "
                 "snapshots of the same job at two batch sizes")
      ->required()
      ->expected(1, 2);
  app.add_option("--batches", flags.batches, "the batch sizes of two snapshots (8,16)")
      ->type_name("N,M")
      ->delimiter(',')
      ->expected(2);
  app.add_option("--batch", flags.batch, "the batch size")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24));
  app.add_flag("--max-batch", flags.max_batch, "find the largest batch that fits");
  app.add_option("--gpu", flags.gpu,
                 "the card: a name that `plimsoll gpus` lists, or its memory (22GiB); that of the "
                 "capture unless given")
      ->type_name("GPU");
  app.add_option("--optimizer", flags.optimizer,
                 "another optimizer than the captured one (sgd, adamw, adamw:fused, adam8bit, ...)")
      ->type_name("O");
  app.add_flag("--ddp", flags.ddp, "as one rank of DistributedDataParallel; the batch is its own");
  app.add_option(
         "--fsdp", flags.fsdp,
         "as one of N ranks of FSDP2, fully_shard on each block and on the whole; N:keep for "
         "reshard_after_forward=False, N:meta for a model built on the meta device")
      ->type_name("N");
  app.add_option("--precision", flags.precision, "a precision that was captured too (amp_bf16)")
      ->type_name("P");
  app.add_option("--alloc-conf", flags.conf, "what PYTORCH_CUDA_ALLOC_CONF will say")
      ->type_name("CONF");
  app.add_option("--limit", flags.limit, "what set_per_process_memory_fraction will allow (20GiB)")
      ->type_name("SIZE");
  app.add_option("--torch", flags.torch, "the release that will train (2.11)")
      ->type_name("RELEASE");
  app.add_option("--calibration", flags.calibration,
                 "what plimsoll.calibrate measured on the card; none for the rules alone")
      ->type_name("FILE");
  app.add_option("--steps", flags.steps, "how many steps to run through the allocator (5)")
      ->type_name("N")
      ->check(CLI::Range(1, 1000));
  app.add_flag("--json", flags.json, "one JSON document (docs/json.md)");
  CLI::Option* const html =
      app.add_option(
             "--html", flags.html,
             "also a page: the predicted run, and memory against time for other batches and "
             "precisions")
          ->type_name("FILE");
  app.add_flag("--events", flags.events, "instead, every request to the allocator as a line of CSV")
      ->excludes(html);
  app.footer(
      "Examples:\n"
      "  plimsoll predict gpt2.step.json.gz --batch 8 --gpu RTX4090\n"
      "  plimsoll predict gpt2.step.json.gz --max-batch --gpu 22GiB\n"
      "  plimsoll predict b8.pickle b16.pickle --batches 8,16 --batch 32 --gpu H100\n"
      "  plimsoll predict gpt2.step.json.gz --batch 8 --gpu H100 --html gpt2.html\n"
      "Exit code 1: it does not fit.");
}

}  // namespace plimsoll

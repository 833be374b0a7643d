#include <fmt/format.h>

#include <memory>
#include <optional>

#include "base/input.h"
#include "cli/command.h"
#include "cli/recorded_step.h"
#include "cli/terminal.h"
#include "report/predict.h"
#include "report/predict_page.h"
#include "step/calibration.h"
#include "step/file/step_file.h"
#include "step/predict.h"
#include "step/predicted_history.h"
#include "step/trade_offs.h"
#include "step/transforms/data_parallel.h"
#include "step/transforms/fully_sharded.h"
#include "step/transforms/optimizer.h"

namespace plimsoll {
namespace {

struct PredictFlags {
  std::vector<std::string> files;
  std::vector<std::int64_t> batches;
  std::optional<std::int64_t> batch;
  std::string gpu;
  std::optional<std::string> precision;
  std::string conf;
  std::optional<std::string> torch;
  std::optional<std::string> optimizer;
  std::optional<std::string> calibration;
  std::optional<std::string> limit;
  int steps = 5;
  bool max_batch = false;
  bool ddp = false;
  std::optional<std::string> fsdp;
  bool json = false;
  bool events = false;
  std::string html;
};

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
  if (flags.fsdp && flags.ddp) {
    return Error{.message = "--fsdp and --ddp are two ways to train on several GPUs",
                 .hint = "give one of them"};
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

Result<Step> ReadFiles(const PredictFlags& flags) {
  if (flags.files.size() == 2) {
    if (flags.batches.size() != 2) {
      return Error{.message = "two recorded runs need their batch sizes",
                   .hint = "give --batches 8,16, the smaller one first"};
    }
    if (flags.optimizer || flags.precision || flags.ddp || flags.fsdp) {
      return Error{
          .message = "a recorded run has the optimizer and the precision it was run with",
          .hint = "leave --optimizer, --precision, --ddp and --fsdp out, or capture the step"};
    }
    return ReadRecordedStep(flags.files[0], flags.files[1], {flags.batches[0], flags.batches[1]});
  }
  const Result<Input> input = Input::Open(flags.files[0]);
  if (!input) return input.error();
  Result<Step> step = ReadStep(*input);
  if (!step) return step;
  if (flags.fsdp) {
    // First, so that another optimizer is one of shards too.
    const Result<Sharding> sharding = ParseSharding(*flags.fsdp);
    if (!sharding) return sharding.error();
    step->notes.push_back(DescribeSharding(*step, step->variants.front(), *sharding));
    for (Variant& variant : step->variants) variant = AddFullySharded(*step, variant, *sharding);
  }
  for (Variant& variant : step->variants) {
    if (flags.optimizer) {
      Result<Variant> replaced = ReplaceOptimizer(*step, variant, *flags.optimizer);
      if (!replaced) return replaced.error();
      variant = std::move(*replaced);
    }
    if (flags.ddp) variant = AddDataParallel(*step, variant);
  }
  if (flags.ddp || flags.fsdp) {
    step->notes.push_back(
        "what NCCL takes outside of PyTorch is not counted: some hundred MiB, by the number of "
        "ranks");
  }
  return step;
}

int PrintEvents(const Step& step, const Gpu& gpu, const PredictOptions& options) {
  const Result<const Variant*> variant = ChooseVariant(step, options);
  if (!variant) return Complain(variant.error());
  return Print(LoweredCsv(step, **variant,
                          Lower(step, **variant, gpu,
                                {.batch = options.batch,
                                 .steps = options.steps,
                                 .torch = TorchFor(step, options),
                                 .calibration = options.calibration})));
}

/// The same answer as a page, with the run that was predicted and the ways around it.
int WritePage(const std::string& path, const Step& step, const PredictOptions& options,
              const Prediction& prediction, const std::optional<MaxBatch>& max_batch) {
  const Result<History> history = PredictedHistory(step, prediction.gpu, options);
  if (!history) return Complain(history.error());
  std::optional<Progress> progress;
  const Result<std::vector<TradeOff>> trade_offs =
      TradeOffs(step, prediction.gpu, options, [&](std::size_t, std::size_t all) {
        if (!progress) progress.emplace("predicting", all);
        progress->Advance();
      });
  if (!trade_offs) return Complain(trade_offs.error());
  return WriteOut(path, PageHtml(PredictionPage(prediction, max_batch, *history, *trade_offs)));
}

int RunPredict(const PredictFlags& flags) {
  Result<PredictOptions> options = Parse(flags);
  if (!options) return Complain(options.error());
  const Result<Step> step = ReadFiles(flags);
  if (!step) return Complain(step.error());
  const std::string gpu_name = !flags.gpu.empty() ? flags.gpu : step->gpu;
  if (gpu_name.empty()) {
    return Complain({.message = "which GPU?", .hint = "give --gpu; `plimsoll gpus` lists them"});
  }
  const Result<Gpu> gpu = FindGpu(gpu_name);
  if (!gpu) return Complain(gpu.error());
  const Result<std::optional<Calibration>> calibration = ReadCalibration(flags);
  if (!calibration) return Complain(calibration.error());
  if (*calibration && (*calibration)->gpu() != gpu->name) {
    return Complain({.message = fmt::format("it was measured on {}, not on {}",
                                            (*calibration)->gpu(), gpu->name),
                     .file = *flags.calibration,
                     .hint = "give the --gpu that it is for"});
  }
  options->calibration = *calibration        ? &**calibration
                         : flags.calibration ? nullptr
                                             : Calibration::BuiltIn(gpu->name);
  std::optional<MaxBatch> max_batch;
  if (flags.max_batch) {
    const Result<MaxBatch> found = FindMaxBatch(*step, *gpu, *options);
    if (!found) return Complain(found.error());
    max_batch = *found;
  }
  options->batch =
      flags.batch.value_or(max_batch ? std::max<std::int64_t>(1, max_batch->batch) : 1);
  if (flags.events) return PrintEvents(*step, *gpu, *options);
  const Result<Prediction> prediction = Predict(*step, *gpu, *options);
  if (!prediction) return Complain(prediction.error());
  const int printed = Print(flags.json ? PredictJson(*prediction, max_batch)
                                       : PredictText(*prediction, max_batch, StyleOfStdout()));
  if (printed != kFine) return printed;
  if (!flags.html.empty()) {
    const int written = WritePage(flags.html, *step, *options, *prediction, max_batch);
    if (written != kFine) return written;
  }
  return prediction->fits ? kFine : kNo;
}

}  // namespace

Command AddPredict(CLI::App& app) {
  auto flags = std::make_shared<PredictFlags>();
  app.add_option("STEP", flags->files,
                 "a step file, made by plimsoll.capture; - is standard input. Or two memory "
                 "snapshots of the same job at two batch sizes")
      ->required()
      ->expected(1, 2);
  app.add_option("--batches", flags->batches, "the batch sizes of two snapshots (8,16)")
      ->type_name("N,M")
      ->delimiter(',')
      ->expected(2);
  app.add_option("--batch", flags->batch, "the batch size")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24));
  app.add_flag("--max-batch", flags->max_batch, "find the largest batch that fits");
  app.add_option("--gpu", flags->gpu,
                 "the card: a name that `plimsoll gpus` lists, or its memory (22GiB); that of the "
                 "capture unless given")
      ->type_name("GPU");
  app.add_option("--optimizer", flags->optimizer,
                 "another optimizer than the captured one (sgd, adamw, adamw:fused, adam8bit, ...)")
      ->type_name("O");
  app.add_flag("--ddp", flags->ddp, "as one rank of DistributedDataParallel; the batch is its own");
  app.add_option(
         "--fsdp", flags->fsdp,
         "as one of N ranks of FSDP2, fully_shard on each block and on the whole; N:keep for "
         "reshard_after_forward=False, N:meta for a model built on the meta device")
      ->type_name("N");
  app.add_option("--precision", flags->precision, "a precision that was captured too (amp_bf16)")
      ->type_name("P");
  app.add_option("--alloc-conf", flags->conf, "what PYTORCH_CUDA_ALLOC_CONF will say")
      ->type_name("CONF");
  app.add_option("--limit", flags->limit, "what set_per_process_memory_fraction will allow (20GiB)")
      ->type_name("SIZE");
  app.add_option("--torch", flags->torch, "the release that will train (2.11)")
      ->type_name("RELEASE");
  app.add_option("--calibration", flags->calibration,
                 "what plimsoll.calibrate measured on the card; none for the rules alone")
      ->type_name("FILE");
  app.add_option("--steps", flags->steps, "how many steps to run through the allocator (5)")
      ->type_name("N")
      ->check(CLI::Range(1, 1000));
  app.add_flag("--json", flags->json, "one JSON document (docs/json.md)");
  CLI::Option* const html =
      app.add_option(
             "--html", flags->html,
             "also a page: the predicted run, and memory against time for other batches and "
             "precisions")
          ->type_name("FILE");
  app.add_flag("--events", flags->events,
               "instead, every request to the allocator as a line of CSV")
      ->excludes(html);
  app.footer(
      "Examples:\n"
      "  plimsoll predict gpt2.step.json.gz --batch 8 --gpu RTX4090\n"
      "  plimsoll predict gpt2.step.json.gz --max-batch --gpu 22GiB\n"
      "  plimsoll predict b8.pickle b16.pickle --batches 8,16 --batch 32 --gpu H100\n"
      "  plimsoll predict gpt2.step.json.gz --batch 8 --gpu H100 --html gpt2.html\n"
      "Exit code 1: it does not fit.");
  return [flags] { return RunPredict(*flags); };
}

}  // namespace plimsoll

#include "train/program/flags.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "train/parallel/ranks/launch.h"
#include "train/program/check_files.h"
#include "train/trainer/plan_file.h"

namespace plimsoll::train {
namespace {

constexpr const char* kExamples = R"(Examples:
  plimsoll-train unet --budget 2GiB               a U-Net on images made on the spot
  plimsoll-train gpt --data book.txt --budget 1GiB --batch 64
  plimsoll-train classifier --data photos/ --device cuda --precision bf16
  plimsoll-train gpt --save run.state --save-every 50      stop it, then:
  plimsoll-train gpt --save run.state --save-every 50 --resume
  plimsoll-train unet --ranks 4 --budget 2GiB     four processes, 2 GiB each
  plimsoll-train gpt --ranks 4 --pipeline 2      two pipelines of two stages
  plimsoll-train gpt --plan plan.json             as plimsoll plan --json has found
  torchrun --no-python --nproc-per-node 4 plimsoll-train gpt --shard parameters)";

/// A whole number, not too large to be counted on with.
CLI::Validator AtLeast(std::int64_t least) {
  static constexpr std::int64_t kMost = std::int64_t{1} << 40;
  const auto check = [least](const std::string& text) -> std::string {
    std::int64_t number = 0;
    const char* const end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data(), end, number);
    if (parsed.ec == std::errc() && parsed.ptr == end && number >= least && number <= kMost) {
      return {};
    }
    return c10::str("'", text, "' is not a whole number from ", least, " to ", kMost);
  };
  return {check, "NUMBER"};
}

/// A number from 0 on, below `bound` if there is one.
CLI::Validator FromZero(std::optional<double> bound = std::nullopt) {
  const auto check = [bound](const std::string& text) -> std::string {
    double number = 0;
    const char* const end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data(), end, number);
    const bool whole = parsed.ec == std::errc() && parsed.ptr == end && std::isfinite(number);
    if (whole && number >= 0 && number < bound.value_or(number + 1)) return {};
    return c10::str("'", text, "' is not a number from 0 on",
                    bound ? c10::str(" and below ", *bound) : std::string());
  };
  return {check, "NUMBER"};
}

std::uint64_t ParseSeed(const std::string& text) {
  std::uint64_t seed = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, seed);
  TORCH_CHECK(parsed.ec == std::errc() && parsed.ptr == end, "'", text,
              "' is not a whole number from 0 to ", UINT64_MAX);
  return seed;
}

template <class Value, class Parse>
void AddParsed(CLI::App& app, const char* name, Value& value, Parse parse, const char* help) {
  app.add_option_function<std::string>(
      name,
      [&value, parse, name](const std::string& text) {
        try {
          value = parse(text);
        } catch (const c10::Error& error) {
          throw CLI::ValidationError(name, error.what_without_backtrace());
        }
      },
      help);
}

Bytes ParseBudget(const std::string& text) {
  const auto bytes = ParseBytes(text);
  TORCH_CHECK(bytes.ok(), "'", text, "' is not a size such as 2GiB");
  return *bytes;
}

void AddModelFlags(CLI::App& app, Flags& flags) {
  app.add_option("model", flags.model, "unet, classifier, gpt or mlp")
      ->required()
      ->check(CLI::IsMember({"unet", "classifier", "gpt", "mlp"}));
  app.add_option("--width", flags.sizes.width, "channels of the first level, or of each layer")
      ->check(AtLeast(1));
  app.add_option("--layers", flags.sizes.layers, "layers of the gpt, blocks of the classifier")
      ->check(AtLeast(1));
  app.add_option("--heads", flags.sizes.heads, "attention heads of the gpt")->check(AtLeast(1));
  app.add_option("--context", flags.sizes.context, "tokens in a sample of the gpt")
      ->check(AtLeast(1));
  app.add_option("--vocabulary", flags.sizes.vocabulary, "tokens that the gpt knows")
      ->check(AtLeast(2));
  app.add_option("--classes", flags.sizes.classes, "classes of images or pixels")
      ->check(AtLeast(2));
  app.add_option("--image", flags.image, "height and width of images")->check(AtLeast(1));
  app.add_option("--dropout", flags.sizes.dropout, "of the gpt")->check(FromZero(1));
  app.add_flag("--separable", flags.sizes.separable, "depthwise-separable convolutions");
  AddParsed(app, "--normalization", flags.sizes.normalization, ParseNormalization,
            "group (default), batch or none");
  app.add_option("--data", flags.data,
                 "a text file, or a folder of images; otherwise samples are made on the spot");
}

void AddTrainingFlags(CLI::App& app, Flags& flags) {
  app.add_option("--steps", flags.steps, "steps in all")->check(AtLeast(1));
  auto* const batch = app.add_option("--batch", flags.batch, "samples that one step learns from")
                          ->check(AtLeast(1));
  auto* const tokens = app.add_option("--batch-tokens", flags.batch_tokens,
                                      "or tokens, at most, that one step learns from (gpt)");
  auto* const pixels =
      app.add_option("--batch-pixels", flags.batch_pixels, "or pixels, at most (unet, classifier)");
  tokens->check(AtLeast(1))->excludes(batch)->excludes(pixels);
  pixels->check(AtLeast(1))->excludes(batch);
  app.add_flag("--skip-broken", flags.skip_broken,
               "leave files out that cannot be read; the end says how many");
  app.add_option("--learning-rate", flags.learning_rate)->check(FromZero());
  app.add_option(
         "--schedule", flags.schedule,
         "of the learning rate: constant (default), linear, cosine, inverse-sqrt or one-cycle")
      ->check(CLI::IsMember({"constant", "linear", "cosine", "inverse-sqrt", "one-cycle"}));
  app.add_option("--warm-up", flags.warm_up, "steps in which the learning rate rises")
      ->check(AtLeast(0));
  app.add_option("--ema", flags.ema, "decay of moving averages of the model, such as 0.999")
      ->check(FromZero(1));
  app.add_option("--optimizer", flags.optimizer,
                 "adamw (on the host where it does not fit), adamw8bit, adamw-host or sgd")
      ->check(CLI::IsMember({"adamw", "adamw8bit", "adamw-host", "sgd"}));
  app.add_option("--lora", flags.lora,
                 "train adapters of this rank in place of the model, such as 8")
      ->check(AtLeast(1));
  AddParsed(app, "--seed", flags.seed, ParseSeed, "of all random numbers (0)");
  app.add_option("--workers", flags.workers, "threads that load batches")
      ->check(CLI::Range(0, 1024));
}

void AddMemoryFlags(CLI::App& app, Flags& flags) {
  TrainerOptions& trainer = flags.trainer;
  AddParsed(app, "--budget", trainer.budget, ParseBudget, "the most memory to hold, such as 2GiB");
  AddParsed(
      app, "--device", trainer.device, [](const std::string& text) { return c10::Device(text); },
      "cpu (default) or cuda:0");
  AddParsed(app, "--precision", trainer.precision, ParsePrecision, "fp32 (default), bf16 or fp16");
  AddParsed(app, "--checkpoint", trainer.checkpoint, CheckpointPolicy::Parse,
            "none, all, sqrt, every:K or plan:I,J; otherwise chosen");
  app.add_option("--micro-batch", trainer.micro_batch, "samples at a time; otherwise chosen")
      ->check(AtLeast(1));
  app.add_option("--offload", trainer.offload, "true or false; otherwise chosen");
  app.add_option("--chunked-loss", trainer.chunked_loss,
                 "the gpt's logits are never whole: true or false; otherwise chosen");
  app.add_flag("--cuda-graph", trainer.cuda_graph,
               "replay a step as a CUDA graph where that gives the same");
  app.add_option("--clip", trainer.clip_norm, "the largest norm of the gradients")
      ->check(FromZero());
}

/// "parameters" and so on, as Shard has it; "nothing".
std::optional<Shard> ParseShard(const std::string& text) {
  if (text == "nothing") return std::nullopt;
  if (text == "optimizer") return Shard::kOptimizerState;
  if (text == "gradients") return Shard::kGradients;
  TORCH_CHECK(text == "parameters", "'", text,
              "' is not one of nothing, optimizer, gradients, parameters");
  return Shard::kParameters;
}

void AddRankFlags(CLI::App& app, Flags& flags) {
  app.add_option("--ranks", flags.ranks,
                 "train in so many processes on this machine, each with a part of the batch (1: as "
                 "several do, alone); under torchrun, mpirun or srun leave it out")
      ->check(CLI::Range(1, 1024));
  AddParsed(app, "--shard", flags.trainer.team.shard, ParseShard,
            "what each rank keeps only a part of: nothing (default), optimizer (its state), "
            "gradients (too), parameters (too)");
  auto* const shard = app.get_option("--shard");
  auto* const pipeline =
      app.add_option("--pipeline", flags.pipeline,
                     "so many ranks have different layers, which rows go through (gpt, mlp)")
          ->check(AtLeast(1))
          ->excludes(shard);
  app.add_option("--chunks", flags.chunks, "parts of each rank of a pipeline: 2 or more interleave")
      ->check(AtLeast(1))
      ->needs(pipeline);
  app.add_option("--tensor", flags.tensor, "so many ranks share each layer, in parts (gpt)")
      ->check(AtLeast(1))
      ->excludes(shard)
      ->excludes(pipeline);
  auto* const plan =
      app.add_option("--plan", flags.plan,
                     "do as this says, which plimsoll plan --json printed; other flags come first");
  app.add_option("--way", flags.way, "which way of the plan, from 0 (the fastest, default) on")
      ->check(AtLeast(0))
      ->needs(plan);
  app.add_option("--rank-limit", flags.rank_limit,
                 "seconds after which a rank that waits for another gives up")
      ->check(AtLeast(1));
}

void AddOutputFlags(CLI::App& app, Flags& flags) {
  app.add_option("--log", flags.log, "a JSON line a step");
  app.add_option("--snapshot", flags.snapshot, "the memory's history, for plimsoll explain (CUDA)");
  app.add_option("--from", flags.initial_weights, "begin with these weights (safetensors)");
  app.add_option("--weights", flags.weights, "write the weights at the end (safetensors)");
  app.add_option("--save", flags.save, "where the state of the run is saved at the end");
  app.add_option("--save-every", flags.save_every, "and after so many steps each")
      ->check(AtLeast(1));
  app.add_flag("--resume", flags.resume, "go on from the saved state, if there is one");
  app.add_flag("--allow-changes", flags.allow_changes,
               "resume though other flags were given than when it was saved");
}

/// What the plan says and no flag does.
void FollowPlan(const CLI::App& app, Flags& flags) {
  if (flags.plan.empty()) return;
  CheckInput("--plan", flags.plan);
  const PlannedWay way = ReadPlan(flags.plan, flags.way);
  const auto free = [&app](const char* flag) { return app.count(flag) == 0; };
  TrainerOptions planned = flags.trainer;
  way.Set(planned);
  TrainerOptions& trainer = flags.trainer;
  if (free("--micro-batch")) trainer.micro_batch = planned.micro_batch;
  if (free("--checkpoint")) trainer.checkpoint = planned.checkpoint;
  if (free("--offload")) trainer.offload = planned.offload;
  if (free("--chunked-loss")) trainer.chunked_loss = planned.chunked_loss;
  if (free("--precision")) trainer.precision = planned.precision;
  if (free("--shard") && free("--pipeline") && free("--tensor")) {
    trainer.team = planned.team;
    flags.pipeline = way.stages;
    flags.chunks = way.chunks;
  }
  if (free("--batch") && free("--batch-tokens") && free("--batch-pixels")) flags.batch = way.batch;
  if (free("--optimizer") && way.optimizer == OptimizerForm::kHost) flags.optimizer = "adamw-host";
  if (free("--optimizer") && way.optimizer == OptimizerForm::kEightBits) {
    flags.optimizer = "adamw8bit";
  }
  const int started = LaunchFromEnvironment().size;
  if (started == 1 && free("--ranks") && way.ranks > 1) flags.ranks = way.ranks;
  const int ranks = started == 1 ? std::max(flags.ranks, 1) : started;
  TORCH_CHECK(ranks == way.ranks, "--plan: way ", flags.way, " of ", flags.plan, " is for ",
              way.ranks, " ranks, and there are ", ranks);
  flags.left_out = way.left_out;
}

}  // namespace

void AddFlags(CLI::App& app, Flags& flags) {
  AddModelFlags(app, flags);
  AddTrainingFlags(app, flags);
  AddMemoryFlags(app, flags);
  AddRankFlags(app, flags);
  AddOutputFlags(app, flags);
  app.footer(kExamples);
  app.final_callback([&app, &flags] {
    for (const CLI::Option* const option : app.get_options()) {
      if (option->count() > 0) flags.given.insert(option->get_name());
    }
    FollowPlan(app, flags);
  });
}

std::map<std::string, std::string> RunSettings(const Flags& flags) {
  const ModelSizes& sizes = flags.sizes;
  return {{"model", flags.model},
          {"--width", c10::str(sizes.width)},
          {"--layers", c10::str(sizes.layers)},
          {"--heads", c10::str(sizes.heads)},
          {"--context", c10::str(sizes.context)},
          {"--vocabulary", c10::str(sizes.vocabulary)},
          {"--classes", c10::str(sizes.classes)},
          {"--image", c10::str(flags.image)},
          {"--dropout", c10::str(sizes.dropout)},
          {"--separable", sizes.separable ? "true" : "false"},
          {"--data", flags.data},
          {"--batch", c10::str(flags.batch)},
          {"--batch-tokens", c10::str(flags.batch_tokens)},
          {"--batch-pixels", c10::str(flags.batch_pixels)},
          {"--lora", c10::str(flags.lora)},
          {"--learning-rate", c10::str(flags.learning_rate)},
          {"--schedule", flags.schedule},
          {"--warm-up", c10::str(flags.warm_up)},
          {"--ema", c10::str(flags.ema)},
          {"--optimizer", flags.optimizer},
          {"--seed", c10::str(flags.seed)},
          {"--precision", std::string(PrecisionName(flags.trainer.precision))},
          {"--clip", c10::str(flags.trainer.clip_norm)}};
}

}  // namespace plimsoll::train

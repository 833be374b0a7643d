#include "train/program/check_flags.h"

#include <torch/cuda.h>

#include <map>
#include <utility>

#include "train/models/unet.h"
#include "train/parallel/ranks/launch.h"
#include "train/program/check_files.h"

namespace plimsoll::train {
namespace {

int RanksOf(const Flags& flags) {
  return flags.ranks > 0 ? flags.ranks : LaunchFromEnvironment().size;
}

void SetSchedule(Flags& flags) {
  using Shape = ScheduleOptions::Shape;
  const std::map<std::string, Shape> shapes = {{"constant", Shape::kConstant},
                                               {"linear", Shape::kLinear},
                                               {"cosine", Shape::kCosine},
                                               {"inverse-sqrt", Shape::kInverseSquareRoot},
                                               {"one-cycle", Shape::kOneCycle}};
  if (flags.schedule != "constant" || flags.warm_up > 0) {
    flags.trainer.schedule = {
        .shape = shapes.at(flags.schedule), .warm_up = flags.warm_up, .steps = flags.steps};
    CheckSchedule(*flags.trainer.schedule);
  }
  if (flags.ema != 0) flags.trainer.ema = EmaOptions{.decay = flags.ema};
}

void CheckBatch(const Flags& flags) {
  TORCH_CHECK(flags.batch_tokens == 0 || flags.model == "gpt", "--batch-tokens is for the gpt");
  TORCH_CHECK(flags.batch_pixels == 0 || flags.model == "unet" || flags.model == "classifier",
              "--batch-pixels is for the unet and the classifier");
}

void CheckGroups(const Flags& flags) {
  const int ranks = RanksOf(flags);
  for (const auto& [flag, size] :
       {std::pair{"--pipeline", flags.pipeline}, std::pair{"--tensor", flags.tensor}}) {
    TORCH_CHECK(ranks % size == 0, flag, ": ", ranks, ranks == 1 ? " rank" : " ranks",
                " cannot be groups of ", size);
  }
  const bool gpt = flags.model == "gpt";
  TORCH_CHECK(flags.pipeline == 1 || gpt || flags.model == "mlp", "--pipeline: the ", flags.model,
              " is no sequence of layers; --shard parameters spreads any model");
  TORCH_CHECK(flags.tensor == 1 || gpt, "--tensor: the ", flags.model,
              " has no layers that ranks can share; the gpt has");
  TORCH_CHECK(flags.tensor == 1 || flags.lora == 0, "--tensor does not go with --lora");
  TORCH_CHECK(!flags.trainer.chunked_loss.value_or(false) || (gpt && flags.pipeline == 1),
              "--chunked-loss is for the gpt, and not for a pipeline");
  TORCH_CHECK(ranks == 1 || !flags.trainer.cuda_graph, "--cuda-graph is for one rank alone");
  TORCH_CHECK(!flags.trainer.team.shard || flags.ema == 0,
              "--ema does not go with --shard: moving averages need all that is trained");
}

/// What the flags leave open.
void SetSizes(Flags& flags) {
  ModelSizes& sizes = flags.sizes;
  const auto at_least = [](std::int64_t& size, std::int64_t usual) {
    if (size == 0) size = usual;
  };
  at_least(flags.image, flags.model == "unet" ? 128 : 64);
  at_least(sizes.classes, flags.model == "unet" ? 2 : 10);
  if (flags.model == "gpt") {
    at_least(sizes.vocabulary, 256);
    at_least(sizes.context, 128);
    at_least(sizes.width, 192);
    at_least(sizes.layers, 6);
    at_least(sizes.heads, 6);
  } else if (flags.model != "mlp") {
    at_least(sizes.width, 16);
    at_least(sizes.in_channels, 3);
  } else {
    at_least(sizes.in_channels, 1000);
  }
}

/// What the model would say in words that no flag has.
void CheckSizes(const Flags& flags) {
  const ModelSizes& sizes = flags.sizes;
  if (flags.model == "gpt") {
    TORCH_CHECK(sizes.width % sizes.heads == 0, "--width: ", sizes.width,
                " cannot be split evenly among --heads ", sizes.heads);
    TORCH_CHECK(sizes.heads % flags.tensor == 0, "--tensor: ", sizes.heads,
                " heads cannot be split evenly among ", flags.tensor, " ranks");
  }
  // The second layer has half the width.
  TORCH_CHECK(flags.model != "mlp" || sizes.width != 1, "--width: the mlp's is at least 2");
  constexpr std::int64_t kUnetSide = 1 << UNet::kDowns;
  TORCH_CHECK(flags.model != "unet" || flags.image % kUnetSide == 0,
              "--image: the unet's images have sides that are a multiple of ", kUnetSide, ", not ",
              flags.image);
}

}  // namespace

void Complete(Flags& flags) {
  TORCH_CHECK(!flags.trainer.device.is_cuda() || torch::cuda::is_available(),
              "there is no CUDA device here");
  TORCH_CHECK(flags.save_every == 0 || !flags.save.empty(), "--save-every needs --save");
  TORCH_CHECK(!flags.resume || !flags.save.empty(), "--resume needs --save, which names the state");
  SetSchedule(flags);
  CheckBatch(flags);
  CheckGroups(flags);
  CheckFiles(flags);
  SetSizes(flags);
  CheckSizes(flags);
}

std::vector<std::string> FlagsWithoutEffect(const Flags& flags) {
  using Models = std::set<std::string>;
  static const std::map<std::string, Models> of_models = {
      {"--layers", {"gpt", "classifier"}},
      {"--heads", {"gpt"}},
      {"--context", {"gpt"}},
      {"--vocabulary", {"gpt"}},
      {"--dropout", {"gpt"}},
      {"--chunked-loss", {"gpt"}},
      {"--classes", {"unet", "classifier", "mlp"}},
      {"--image", {"unet", "classifier"}},
      {"--separable", {"unet", "classifier"}},
      {"--normalization", {"unet", "classifier"}}};
  std::vector<std::string> said;
  for (const auto& [flag, models] : of_models) {
    if (!flags.given.contains(flag) || models.contains(flags.model)) continue;
    said.push_back(c10::str(flag, " has no effect on the ", flags.model));
  }
  const auto without = [&](const char* flag, bool effective, const char* why) {
    if (flags.given.contains(flag) && !effective) {
      said.push_back(c10::str(flag, " has no effect: ", why));
    }
  };
  const bool several = RanksOf(flags) > 1;
  without("--skip-broken", !flags.data.empty(), "samples that are made on the spot are not broken");
  without("--cuda-graph", flags.trainer.device.is_cuda(), "the device is no GPU");
  without("--shard", several || !flags.trainer.team.shard, "there is one rank alone");
  without("--rank-limit", several || flags.ranks == 1, "there is one rank alone");
  without("--allow-changes", flags.resume, "nothing is resumed");
  return said;
}

std::string GivenSizes(const Flags& flags) {
  std::string text = flags.model;
  for (const auto& [name, value] : RunSettings(flags)) {
    if (name.starts_with("--") && flags.given.contains(name)) {
      text += c10::str(" ", name, " ", value);
    }
  }
  return text;
}

}  // namespace plimsoll::train

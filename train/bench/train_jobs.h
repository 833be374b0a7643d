// The jobs that train_bench trains: on a GPU in sizes that people use, on a CPU in small ones.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "train/bench/train_models.h"
#include "train/budget/memory.h"
#include "train/models/gpt.h"
#include "train/models/unet.h"

namespace plimsoll::train {

struct Bench {
  std::string program;
  c10::Device device = c10::kCPU;
  bool large() const { return device.is_cuda(); }
};

inline void Wait(c10::Device device) {
  if (device.is_cuda()) torch::cuda::synchronize();
}

inline double Mebibytes(Bytes bytes) {
  return static_cast<double>(bytes) / static_cast<double>(kMiB);
}

inline GptOptions GptSizes(const Bench& bench, std::int64_t layers) {
  if (bench.large()) return {.width = 1024, .layers = layers, .heads = 16};
  return {.vocabulary = 512, .context = 64, .width = 64, .layers = layers, .heads = 4};
}

inline Batch Tokens(const Bench& bench, const GptOptions& sizes, std::int64_t rows) {
  const at::Tensor text =
      torch::randint(0, sizes.vocabulary, {rows, sizes.context + 1}, at::kLong).to(bench.device);
  return {{text.slice(1, 0, sizes.context).contiguous(), text.slice(1, 1).contiguous()}};
}

/// A model with data, made anew the same way each time.
struct Job {
  std::string name;
  std::function<std::shared_ptr<TrainModel>()> make;
  std::function<Batch(std::int64_t rows)> batch;
  std::int64_t rows;
};

inline std::vector<Job> Jobs(const Bench& bench) {
  const GptOptions gpt = GptSizes(bench, bench.large() ? 12 : 4);
  const UNetOptions unet{.width = bench.large() ? 64 : 8};
  const std::int64_t image = bench.large() ? 512 : 64;
  OwnTransformer::Options own;
  if (!bench.large()) own = {.width = 64, .layers = 6, .heads = 4};
  return {
      {"gpt", [gpt] { return std::make_shared<Gpt>(gpt); },
       [bench, gpt](std::int64_t rows) { return Tokens(bench, gpt, rows); }, 32},
      {"unet", [unet] { return std::make_shared<UNet>(unet); },
       [bench, image](std::int64_t rows) {
         return Batch{{torch::randn({rows, 3, image, image}).to(bench.device),
                       torch::randint(0, 2, {rows, image, image}, at::kLong).to(bench.device)}};
       },
       16},
      {"resnet50", [large = bench.large()] { return std::make_shared<ResNet50>(large ? 64 : 8); },
       [bench](std::int64_t rows) {
         const std::int64_t side = bench.large() ? 224 : 64;
         return Batch{{torch::randn({rows, 3, side, side}).to(bench.device),
                       torch::randint(0, 1000, {rows}, at::kLong).to(bench.device)}};
       },
       bench.large() ? 128 : 16},
      {"own", [own] { return std::make_shared<OwnTransformer>(own); },
       [bench, own](std::int64_t rows) {
         return Batch{{torch::randn({rows, 512, own.inputs}).to(bench.device),
                       torch::randint(0, own.classes, {rows}, at::kLong).to(bench.device)}};
       },
       bench.large() ? 32 : 8}};
}

}  // namespace plimsoll::train

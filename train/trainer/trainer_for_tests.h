// Models that the tests of Trainer train.
#pragma once

#include <torch/torch.h>

#include "train/models/model.h"
#include "train/optimizers/fused_adam.h"
#include "train/trainer/trainer.h"

namespace plimsoll::train {

/// Layers whose parameters outweigh what they keep, as in the field where optimizers decide.
inline torch::nn::Sequential Wide() {
  torch::nn::Sequential model;
  for (int i = 0; i < 6; ++i) {
    model->push_back(torch::nn::Linear(256, 256));
    model->push_back(torch::nn::ReLU());
  }
  return model;
}

inline Batch WideBatch(std::int64_t rows) {
  auto generator = at::detail::createCPUGenerator(5);
  return {{torch::randn({rows, 256}, generator, at::kFloat)}};
}

struct SmallGpt {
  explicit SmallGpt(TrainerOptions options = {}, std::int64_t layers = 6) {
    torch::manual_seed(11);
    sizes.layers = layers;
    model = MakeModel("gpt", sizes);
    options.weight = [this](const Batch& rows) { return model->Weight(rows); };
    trainer = std::make_unique<Trainer>(
        model, std::make_shared<FusedAdamW>(model->parameters(), torch::optim::AdamWOptions(1e-3)),
        [this](const Batch& rows) { return model->Loss(rows); }, options);
  }
  Batch Rows(std::int64_t rows, std::uint64_t seed = 3) const {
    auto generator = at::detail::createCPUGenerator(seed);
    const at::Tensor text = torch::randint(0, 61, {rows, 25}, generator, at::kLong);
    return {{text.slice(1, 0, 24).clone(), text.slice(1, 1).clone()}};
  }

  ModelSizes sizes{.width = 16, .vocabulary = 61, .context = 24, .heads = 2};
  std::shared_ptr<TrainModel> model;
  std::unique_ptr<Trainer> trainer;
};

/// The parameters, as one text.
inline std::string TextOf(const torch::nn::Module& model) {
  std::string text;
  for (const at::Tensor& parameter : model.parameters()) {
    text += c10::str(parameter.sum().item<double>(), " ", parameter.norm().item<double>(), "\n");
  }
  return text;
}

}  // namespace plimsoll::train

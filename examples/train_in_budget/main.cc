// A model of one's own, trained within a budget that plain training of it would break.
#include <torch/torch.h>

#include <cstdio>

#include "train/optimizers/fused_adam.h"
#include "train/trainer.h"

namespace train = plimsoll::train;

int main() {
  // Before the model, so that it is counted.
  train::MemoryOf(torch::kCPU);
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(64, 512), torch::nn::GELU(),
                              torch::nn::Linear(512, 512), torch::nn::GELU(),
                              torch::nn::Linear(512, 8));
  const auto loss = [&](const train::Batch& rows) {
    return torch::nn::functional::cross_entropy(model->forward(rows.tensors[0]), rows.tensors[1]);
  };
  const auto optimizer = std::make_shared<train::FusedAdamW>(model->parameters());
  train::Trainer trainer(model.ptr(), optimizer, loss, {.budget = 16 * plimsoll::kMiB});

  const torch::Tensor inputs = torch::randn({2048, 64});
  const torch::Tensor labels = inputs.slice(1, 0, 8).argmax(1);
  for (int i = 0; i < 5; ++i) {
    const train::StepReport report = trainer.Step({{inputs, labels}});
    std::printf("loss %.4f, at most %s held, %s\n", report.loss,
                plimsoll::FormatBytes(report.memory.peak_reserved).c_str(),
                report.levers.ToString().c_str());
  }
}

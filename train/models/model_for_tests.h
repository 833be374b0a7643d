// What the tests of every model do.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <span>

#include "train/models/model.h"

namespace plimsoll::train {

/// The loss, then the gradient of each parameter; with the same random numbers every time.
inline Tensors Gradients(TrainModel& model, const Batch& batch) {
  torch::manual_seed(5);
  model.zero_grad();
  const at::Tensor loss = model.Loss(batch);
  loss.backward();
  Tensors result = {loss.detach()};
  for (const at::Tensor& parameter : model.parameters()) {
    result.push_back(parameter.grad().clone());
  }
  return result;
}

/// Steps of AdamW on one batch.
inline void ExpectLosses(TrainModel& model, const Batch& batch, std::span<const double> losses) {
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-3));
  for (const double expected : losses) {
    optimizer.zero_grad();
    const at::Tensor loss = model.Loss(batch);
    EXPECT_NEAR(loss.item<double>(), expected, 1e-4);
    loss.backward();
    optimizer.step();
  }
}

}  // namespace plimsoll::train

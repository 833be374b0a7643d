// The state of an optimizer as plain tensors and values. Known are SGD, Adam, AdamW, RMSprop and
// Adagrad of torch and all optimizers of plimsoll::train. Fused optimizers, and those on the host
// with parameters in fp32, go on where torch's stopped, and torch's where they did.
#pragma once

#include <torch/optim/optimizer.h>

#include <filesystem>
#include <functional>
#include <string>

#include "train/saving/state_tensors.h"

namespace plimsoll::train {

/// Fails for an optimizer that is not known: what else it holds would be lost in silence.
void AddOptimizer(StateSaver& saver, const std::string& prefix,
                  const torch::optim::Optimizer& optimizer);

/// Checks what was saved against the optimizer and makes a new state of it. The optimizer is not
/// changed before the returned function is called, after the parameters have their values.
[[nodiscard]] std::function<void()> TakeOptimizer(StateLoader& loader, const std::string& prefix,
                                                  torch::optim::Optimizer& optimizer);

/// An optimizer alone, for a training loop without Trainer. Load the model first.
void SaveOptimizer(const std::filesystem::path& path, const torch::optim::Optimizer& optimizer);
void LoadOptimizer(const std::filesystem::path& path, torch::optim::Optimizer& optimizer);

}  // namespace plimsoll::train

// A model that is used and not trained.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <vector>

namespace plimsoll::train {

/// RAII guard: the model is in evaluation.
class Evaluating {
 public:
  explicit Evaluating(torch::nn::Module& model);
  ~Evaluating();
  Evaluating(const Evaluating&) = delete;
  Evaluating& operator=(const Evaluating&) = delete;

 private:
  std::vector<torch::nn::Module*> training_;
};

}  // namespace plimsoll::train

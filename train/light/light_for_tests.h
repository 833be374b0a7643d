// A small problem that each way to make a model lighter is tried on.
#pragma once

#include <torch/torch.h>

namespace plimsoll::train {

/// 96 vectors of 12 numbers, in four classes that a small net learns.
struct SmallProblem {
  at::Tensor inputs;
  at::Tensor labels;

  static SmallProblem Make() {
    torch::manual_seed(3);
    const at::Tensor inputs = torch::randn({96, 12});
    return {inputs, torch::mm(inputs, torch::randn({12, 4})).argmax(1)};
  }

  template <class Model>
  double Loss(Model& model) const {
    const torch::NoGradGuard no_grad;
    return torch::nn::functional::cross_entropy(model->forward(inputs), labels)
        .template item<double>();
  }

  /// Steps of Adam; calls `after_step` after each. Returns the loss at the end.
  template <class Model, class AfterStep>
  double Train(Model& model, std::vector<at::Tensor> parameters, int steps,
               AfterStep after_step) const {
    torch::optim::Adam optimizer(std::move(parameters), torch::optim::AdamOptions(1e-2));
    for (int i = 0; i < steps; ++i) {
      optimizer.zero_grad();
      torch::nn::functional::cross_entropy(model->forward(inputs), labels).backward();
      optimizer.step();
      after_step();
    }
    return Loss(model);
  }
  template <class Model>
  double Train(Model& model, std::vector<at::Tensor> parameters, int steps) const {
    return Train(model, std::move(parameters), steps, [] {});
  }
};

/// Two layers with a ReLU between, as elements of a Sequential.
inline torch::nn::Sequential SmallNet(std::int64_t width = 24) {
  return torch::nn::Sequential(torch::nn::Linear(12, width), torch::nn::ReLU(),
                               torch::nn::Linear(width, 4));
}

inline double LargestDifference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

}  // namespace plimsoll::train

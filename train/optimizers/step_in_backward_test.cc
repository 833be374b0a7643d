#include "train/optimizers/step_in_backward.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>

#include "train/optimizers/fused_adam.h"
#include "train/optimizers/optimizers_for_tests.h"

namespace plimsoll::train::step_in_backward_test {
namespace {

namespace nn = torch::nn;
namespace optim = torch::optim;

nn::Sequential Net(std::int64_t width, int layers) {
  torch::manual_seed(4);
  nn::Sequential net;
  for (int i = 0; i < layers; ++i) {
    net->push_back(nn::Linear(width, width));
    net->push_back(nn::Tanh());
  }
  return net;
}

at::Tensor Input(std::int64_t rows, std::int64_t width, std::uint64_t seed) {
  torch::manual_seed(seed);
  return torch::randn({rows, width});
}

std::unique_ptr<optim::Optimizer> MakeAdam(std::vector<at::Tensor> parameters) {
  return std::make_unique<FusedAdamW>(std::move(parameters), optim::AdamWOptions(0.01));
}

std::vector<at::Tensor> Plainly(int steps) {
  nn::Sequential net = Net(16, 3);
  const auto optimizer = MakeAdam(net->parameters());
  for (int i = 0; i < steps; ++i) {
    optimizer->zero_grad();
    net->forward(Input(8, 16, static_cast<std::uint64_t>(i))).pow(2).sum().backward();
    optimizer->step();
  }
  return CopiesOf(net->parameters());
}

TEST(StepInBackward, GivesTheSameParameters) {
  nn::Sequential net = Net(16, 3);
  const StepInBackward in_backward(net->parameters(), MakeAdam);
  for (std::uint64_t i = 0; i < 5; ++i) {
    net->forward(Input(8, 16, i)).pow(2).sum().backward();
    for (const at::Tensor& parameter : net->parameters()) EXPECT_FALSE(parameter.grad().defined());
  }
  ExpectEqual(CopiesOf(net->parameters()), Plainly(5));
}

TEST(StepInBackward, StepsASharedParameterOnce) {
  const auto run = [](bool in_backward) {
    const at::Tensor weight = Input(4, 4, 1).requires_grad_();
    const auto loss = [&] { return (weight.mm(weight) + weight).pow(2).sum(); };
    if (in_backward) {
      const StepInBackward hooks({weight}, MakeAdam);
      for (int i = 0; i < 3; ++i) loss().backward();
    } else {
      const auto optimizer = MakeAdam({weight});
      for (int i = 0; i < 3; ++i) {
        optimizer->zero_grad();
        loss().backward();
        optimizer->step();
      }
    }
    return CopiesOf({weight});
  };
  ExpectEqual(run(true), run(false));
}

TEST(StepInBackward, AccumulatesWhileItIsOff) {
  nn::Sequential net = Net(16, 3);
  StepInBackward in_backward(net->parameters(), MakeAdam);
  for (std::uint64_t i = 0; i < 4; ++i) {
    const at::Tensor whole = Input(8, 16, i);
    in_backward.set_enabled(false);
    net->forward(whole.narrow(0, 0, 5)).pow(2).sum().backward();
    in_backward.set_enabled(true);
    net->forward(whole.narrow(0, 5, 3)).pow(2).sum().backward();
  }
  ExpectClose(CopiesOf(net->parameters()), Plainly(4), 1e-4);
}

TEST(StepInBackward, NeverHasAllGradients) {
  CpuAllocator& memory = CpuAllocator::Installed();
  constexpr std::int64_t kWidth = 256;
  constexpr int kLayers = 8;
  constexpr Bytes kGradients = kLayers * (kWidth * kWidth + kWidth) * 4;
  const auto peak = [&](bool in_backward) {
    nn::Sequential net = Net(kWidth, kLayers);
    std::unique_ptr<optim::Optimizer> optimizer;
    std::unique_ptr<StepInBackward> hooks;
    if (in_backward) {
      hooks = std::make_unique<StepInBackward>(net->parameters(), MakeAdam);
    } else {
      optimizer = MakeAdam(net->parameters());
    }
    Bytes beyond = 0;
    for (std::uint64_t i = 0; i < 2; ++i) {
      const at::Tensor input = Input(4, kWidth, i);
      const Bytes before = memory.allocated();
      memory.ResetPeak();
      net->forward(input).pow(2).sum().backward();
      if (optimizer != nullptr) {
        optimizer->step();
        optimizer->zero_grad();
      }
      beyond = memory.peak() - before;
    }
    return beyond;
  };
  const Bytes plain = peak(false);
  const Bytes ours = peak(true);
  // One layer's, and the small activations, are all that is left.
  EXPECT_LE(ours, plain - kGradients * (kLayers - 2) / kLayers);
  RecordProperty("plain_bytes", std::to_string(plain));
  RecordProperty("in_backward_bytes", std::to_string(ours));
}

TEST(StepInBackward, SavesAndLoads) {
  const auto path =
      std::filesystem::temp_directory_path() / ("plimsoll_in_backward_" + std::to_string(getpid()));
  nn::Sequential net = Net(16, 3);
  {
    const StepInBackward first(net->parameters(), MakeAdam);
    for (std::uint64_t i = 0; i < 2; ++i) {
      net->forward(Input(8, 16, i)).pow(2).sum().backward();
    }
    first.Save(path);
  }
  {
    const nn::Sequential more = Net(16, 4);
    EXPECT_THROW(StepInBackward(more->parameters(), MakeAdam).Load(path), c10::Error);
  }
  StepInBackward second(net->parameters(), MakeAdam);
  second.Load(path);
  for (std::uint64_t i = 2; i < 5; ++i) net->forward(Input(8, 16, i)).pow(2).sum().backward();
  ExpectEqual(CopiesOf(net->parameters()), Plainly(5));
  std::filesystem::remove(path);
}

TEST(StepInBackward, RefusesWhatItCannotStep) {
  const at::Tensor weight = torch::ones({2}).requires_grad_();
  const StepInBackward first({weight}, MakeAdam);
  EXPECT_THROW(StepInBackward({weight}, MakeAdam), c10::Error);
  EXPECT_THROW(StepInBackward({torch::ones({2})}, MakeAdam), c10::Error);
}

}  // namespace
}  // namespace plimsoll::train::step_in_backward_test

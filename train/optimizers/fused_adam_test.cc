#include "train/optimizers/fused_adam.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "train/optimizers/optimizers_for_tests.h"

namespace plimsoll::train::fused_adam_test {
namespace {

namespace optim = torch::optim;

template <class Optimizer, class Options>
auto Maker(Options options) {
  return [options](const std::vector<at::Tensor>& parameters) {
    return std::make_unique<Optimizer>(parameters, options);
  };
}

TEST(FusedAdam, EqualsTorchs) {
  for (const bool amsgrad : {false, true}) {
    const auto options = optim::AdamOptions(0.02).weight_decay(0.1).amsgrad(amsgrad);
    ExpectClose(AfterSteps(Maker<FusedAdam>(options), 20),
                AfterSteps(Maker<optim::Adam>(options), 20), 1e-6);
  }
}

TEST(FusedAdamW, EqualsTorchs) {
  for (const bool amsgrad : {false, true}) {
    const auto options = optim::AdamWOptions(0.02).weight_decay(0.1).amsgrad(amsgrad);
    ExpectClose(AfterSteps(Maker<FusedAdamW>(options), 20),
                AfterSteps(Maker<optim::AdamW>(options), 20), 1e-6);
  }
}

TEST(FusedSgd, EqualsTorchs) {
  for (const auto& options :
       {optim::SGDOptions(0.02), optim::SGDOptions(0.02).momentum(0.9).dampening(0.3),
        optim::SGDOptions(0.02).momentum(0.9).nesterov(true).weight_decay(0.1)}) {
    ExpectClose(AfterSteps(Maker<FusedSgd>(options), 20),
                AfterSteps(Maker<optim::SGD>(options), 20), 1e-6);
  }
}

TEST(FusedAdam, StepsWholeOrNotAtAll) {
  ExpectStepOrNothing(Maker<FusedAdam>(optim::AdamOptions(0.01).amsgrad(true)), 0);
  ExpectStepOrNothing(Maker<FusedAdam>(optim::AdamOptions(0.01).amsgrad(true)), 2);
}

TEST(FusedAdamW, StepsWholeOrNotAtAll) {
  ExpectStepOrNothing(Maker<FusedAdamW>(optim::AdamWOptions(0.01)), 0);
  ExpectStepOrNothing(Maker<FusedAdamW>(optim::AdamWOptions(0.01)), 2);
}

TEST(FusedSgd, StepsWholeOrNotAtAll) {
  const auto options = optim::SGDOptions(0.01).momentum(0.9);
  ExpectStepOrNothing(Maker<FusedSgd>(options), 0);
  ExpectStepOrNothing(Maker<FusedSgd>(options), 2);
}

/// Bytes that one later step takes beyond what is there.
template <class Make>
Bytes MemoryOfStep(Make make) {
  const at::Tensor parameter = torch::randn({512, 512}).requires_grad_();
  const auto optimizer = make(std::vector<at::Tensor>{parameter});
  parameter.mutable_grad() = torch::randn({512, 512});
  optimizer->step();
  CpuAllocator& memory = CpuAllocator::Installed();
  const Bytes before = memory.allocated();
  memory.ResetPeak();
  optimizer->step();
  return memory.peak() - before;
}

TEST(FusedAdam, TakesNoMemory) {
  EXPECT_EQ(MemoryOfStep(Maker<FusedAdam>(optim::AdamOptions())), 0);
  EXPECT_EQ(MemoryOfStep(Maker<FusedAdamW>(optim::AdamWOptions())), 0);
  EXPECT_EQ(MemoryOfStep(Maker<FusedSgd>(optim::SGDOptions(0.1).momentum(0.9))), 0);
  EXPECT_GE(MemoryOfStep(Maker<optim::Adam>(optim::AdamOptions())), 512 * 512 * 4);
}

/// Half of the steps with one optimizer, the rest with another that loads the first one's state.
template <class First, class Second, class Options>
std::vector<at::Tensor> AfterResuming(const Options& options) {
  const std::vector<at::Tensor> parameters = SomeParameters();
  First first(parameters, options);
  for (std::uint64_t i = 0; i < 3; ++i) {
    SetGradients(parameters, i);
    first.step();
  }
  Second second(parameters, Options(0.5));
  Load(second, Saved(first));
  for (std::uint64_t i = 3; i < 6; ++i) {
    SetGradients(parameters, i);
    second.step();
  }
  return CopiesOf(parameters);
}

TEST(FusedAdam, SavesAndLoads) {
  const auto adam = optim::AdamOptions(0.02).weight_decay(0.1);
  ExpectEqual(AfterResuming<FusedAdam, FusedAdam>(adam), AfterSteps(Maker<FusedAdam>(adam), 6));
  const auto adamw = optim::AdamWOptions(0.02).amsgrad(true);
  ExpectEqual(AfterResuming<FusedAdamW, FusedAdamW>(adamw),
              AfterSteps(Maker<FusedAdamW>(adamw), 6));
  const auto sgd = optim::SGDOptions(0.02).momentum(0.9);
  ExpectEqual(AfterResuming<FusedSgd, FusedSgd>(sgd), AfterSteps(Maker<FusedSgd>(sgd), 6));
}

TEST(FusedAdam, GoesOnWhereTorchsStopped) {
  const auto options = optim::AdamOptions(0.02).weight_decay(0.1);
  const auto want = AfterSteps(Maker<optim::Adam>(options), 6);
  ExpectClose(AfterResuming<optim::Adam, FusedAdam>(options), want, 1e-6);
  ExpectClose(AfterResuming<FusedAdam, optim::Adam>(options), want, 1e-6);
}

TEST(FusedAdam, StepsParametersThatComeLater) {
  const auto run = [](auto make) {
    const std::vector<at::Tensor> parameters = SomeParameters();
    const auto optimizer = make(parameters);
    for (std::uint64_t i = 0; i < 6; ++i) {
      SetGradients(parameters, i);
      if (i < 3) parameters[1].mutable_grad() = at::Tensor();
      optimizer->step();
    }
    return CopiesOf(parameters);
  };
  const auto options = optim::AdamOptions(0.02);
  ExpectClose(run(Maker<FusedAdam>(options)), run(Maker<optim::Adam>(options)), 1e-6);
}

TEST(FusedAdamW, KeepsGroupsApart) {
  const auto run = [](auto example) {
    using Optimizer = typename decltype(example)::element_type;
    const std::vector<at::Tensor> parameters = SomeParameters();
    std::vector<optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{parameters[0], parameters[3]},
                        std::make_unique<optim::AdamWOptions>(0.03));
    groups.emplace_back(std::vector<at::Tensor>{parameters[1], parameters[2]},
                        std::make_unique<optim::AdamWOptions>(0.003));
    Optimizer optimizer(groups, optim::AdamWOptions(0.01));
    for (std::uint64_t i = 0; i < 5; ++i) {
      SetGradients(parameters, i);
      optimizer.step();
    }
    return CopiesOf(parameters);
  };
  ExpectClose(run(std::unique_ptr<FusedAdamW>()), run(std::unique_ptr<optim::AdamW>()), 1e-6);
}

TEST(FusedAdam, RunsTheClosure) {
  const at::Tensor parameter = torch::ones({4}).requires_grad_();
  FusedAdam optimizer(std::vector<at::Tensor>{parameter}, optim::AdamOptions(0.1));
  const at::Tensor loss = optimizer.step([&] {
    const at::Tensor made = parameter.pow(2).sum();
    made.backward();
    return made;
  });
  EXPECT_FLOAT_EQ(loss.item<float>(), 4);
  EXPECT_NEAR(parameter[0].item<float>(), 0.9, 1e-5);
}

}  // namespace
}  // namespace plimsoll::train::fused_adam_test

#include "train/optimizers/host_optimizer.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "train/optimizers/fused_adam.h"
#include "train/optimizers/optimizers_for_tests.h"

namespace plimsoll::train::host_optimizer_test {
namespace {

namespace optim = torch::optim;

TEST(HostAdam, EqualsTheOneOnTheDevice) {
  for (const bool amsgrad : {false, true}) {
    const auto adam = optim::AdamOptions(0.02).weight_decay(0.1).amsgrad(amsgrad);
    ExpectEqual(AfterSteps(Maker<HostAdam>(adam), 10), AfterSteps(Maker<FusedAdam>(adam), 10));
    const auto adamw = optim::AdamWOptions(0.02).weight_decay(0.1).amsgrad(amsgrad);
    ExpectEqual(AfterSteps(Maker<HostAdamW>(adamw), 10), AfterSteps(Maker<FusedAdamW>(adamw), 10));
  }
}

TEST(HostAdam, TakesNothingOfTheDevice) {
  CpuAllocator& memory = CpuAllocator::Installed();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor parameter = torch::randn({64, 64}, dtype).requires_grad_();
    parameter.mutable_grad() = torch::randn({64, 64}, dtype);
    HostAdam optimizer(std::vector<at::Tensor>{parameter}, optim::AdamOptions());
    const Bytes before = memory.allocated();
    memory.ResetPeak();
    for (int i = 0; i < 3; ++i) optimizer.step();
    EXPECT_EQ(memory.peak(), before);
    // Also the state that comes from a file.
    HostAdam loaded(std::vector<at::Tensor>{parameter}, optim::AdamOptions());
    Load(loaded, Saved(optimizer));
    EXPECT_EQ(memory.allocated(), before);
  }
}

TEST(HostAdam, StepsWholeOrNotAtAll) {
  ExpectStepOrNothing(Maker<HostAdam>(optim::AdamOptions(0.01)), 0);
  ExpectStepOrNothing(Maker<HostAdam>(optim::AdamOptions(0.01)), 2);
}

TEST(HostAdam, KeepsAMasterOfNarrowParameters) {
  const at::Tensor narrow = torch::ones({64}, at::kBFloat16).requires_grad_();
  const at::Tensor wide = torch::ones({64}).requires_grad_();
  HostAdam host(std::vector<at::Tensor>{narrow}, optim::AdamOptions(1e-4));
  FusedAdam device(std::vector<at::Tensor>{wide}, optim::AdamOptions(1e-4));
  narrow.mutable_grad() = torch::ones({64}, at::kBFloat16);
  wide.mutable_grad() = torch::ones({64});
  // A single step is lost in bf16; a hundred of them are not.
  for (int i = 0; i < 100; ++i) {
    host.step();
    device.step();
  }
  EXPECT_TRUE(torch::equal(narrow, wide.to(at::kBFloat16)));
  EXPECT_LT(narrow[0].item<float>(), 1);
}

TEST(HostAdam, TakesUpAParameterThatWasChanged) {
  const at::Tensor narrow = torch::ones({64}, at::kBFloat16).requires_grad_();
  HostAdam host(std::vector<at::Tensor>{narrow}, optim::AdamOptions(1e-4));
  narrow.mutable_grad() = torch::ones({64}, at::kBFloat16);
  host.step();
  {
    const torch::NoGradGuard no_grad;
    narrow.fill_(5);
  }
  host.step();
  EXPECT_NEAR(narrow[0].item<float>(), 5, 0.1);
}

template <class Optimizer>
std::vector<at::Tensor> AfterResuming(at::ScalarType dtype, bool resumes) {
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& parameter : SomeParameters()) {
    parameters.push_back(parameter.detach().to(dtype).requires_grad_());
  }
  const auto options = optim::AdamWOptions(0.003);
  auto optimizer = std::make_unique<Optimizer>(parameters, options);
  for (std::uint64_t i = 0; i < 6; ++i) {
    SetGradients(parameters, i);
    for (const at::Tensor& parameter : parameters) {
      if (parameter.grad().defined()) parameter.mutable_grad() = parameter.grad().to(dtype);
    }
    if (resumes && i == 3) {
      const std::string saved = Saved(*optimizer);
      optimizer = std::make_unique<Optimizer>(parameters, optim::AdamWOptions(0.5));
      Load(*optimizer, saved);
    }
    optimizer->step();
  }
  return CopiesOf(parameters);
}

TEST(HostAdamW, SavesAndLoads) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    ExpectEqual(AfterResuming<HostAdamW>(dtype, true), AfterResuming<HostAdamW>(dtype, false));
  }
}

}  // namespace
}  // namespace plimsoll::train::host_optimizer_test

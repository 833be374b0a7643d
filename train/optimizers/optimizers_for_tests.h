// Parameters with gradients to step on, and a test that all optimizers have to pass: a step without
// memory changes nothing.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "train/budget/cpu_allocator.h"
#include "train/optimizers/optimizer_state.h"
#include "train/optimizers/optimizer_step.h"

namespace plimsoll::train {

/// Makes the optimizer of any parameters.
template <class Optimizer, class Options>
auto Maker(Options options) {
  return [options](const std::vector<at::Tensor>& parameters) {
    return std::make_unique<Optimizer>(parameters, options);
  };
}

/// The same each time it is made. One parameter lies in channels-last order, one is a single
/// number, one gets no gradient.
inline std::vector<at::Tensor> SomeParameters() {
  torch::manual_seed(11);
  const at::Tensor images = torch::randn({6, 3, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast);
  std::vector<at::Tensor> parameters = {torch::randn({40, 120}), torch::randn({120}), images,
                                        torch::randn({}), torch::randn({5})};
  for (at::Tensor& parameter : parameters) parameter.requires_grad_();
  return parameters;
}

inline void SetGradients(const std::vector<at::Tensor>& parameters, std::uint64_t seed) {
  torch::manual_seed(seed);
  for (std::size_t i = 0; i + 1 < parameters.size(); ++i) {
    // Contiguous, also where the parameter is not.
    parameters[i].mutable_grad() = torch::randn(parameters[i].sizes());
  }
}

inline std::vector<at::Tensor> CopiesOf(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

/// The optimizer as it would be written to a file.
inline std::string Saved(const torch::optim::Optimizer& optimizer) {
  StateSaver saver;
  AddOptimizer(saver, "", optimizer);
  return saver.Bytes();
}

inline void Load(torch::optim::Optimizer& optimizer, const std::string& saved) {
  StateLoader loader = StateLoader::FromBytes(saved);
  const auto put = TakeOptimizer(loader, "", optimizer);
  loader.CheckThatNothingIsLeft();
  put();
}

inline void ExpectEqual(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i])) << i;
}

inline void ExpectClose(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b,
                        double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(torch::allclose(a[i], b[i], tolerance, tolerance))
        << i << ": " << (a[i] - b[i]).abs().max().item<double>();
  }
}

/// Parameters after some steps of an optimizer that `make` makes for them.
template <class Make>
std::vector<at::Tensor> AfterSteps(Make make, int steps) {
  const std::vector<at::Tensor> parameters = SomeParameters();
  const auto optimizer = make(parameters);
  for (int i = 0; i < steps; ++i) {
    SetGradients(parameters, static_cast<std::uint64_t>(i));
    optimizer->step();
  }
  return CopiesOf(parameters);
}

/// Takes memory away at each allocation of the third step in turn (or of the first). Then either
/// the step went through, or it has changed nothing and can be repeated; it gives what it gives
/// without failure, and so do those after.
template <class Make>
void ExpectStepOrNothing(Make make, int failing_step) {
  constexpr int kSteps = 4;
  CpuAllocator& memory = CpuAllocator::Installed();
  const std::vector<at::Tensor> want = AfterSteps(make, kSteps);
  bool reached = true;
  int failures = 0;
  for (; reached; ++failures) {
    const std::vector<at::Tensor> parameters = SomeParameters();
    const auto optimizer = make(parameters);
    for (int i = 0; i < kSteps; ++i) {
      SetGradients(parameters, static_cast<std::uint64_t>(i));
      if (i != failing_step) {
        StepOrNothing(*optimizer);
        continue;
      }
      const std::vector<at::Tensor> before = CopiesOf(parameters);
      const std::string saved = Saved(*optimizer);
      const std::int64_t failing = memory.requests() + failures;
      memory.FailAt(failing);
      try {
        StepOrNothing(*optimizer);
        reached = memory.requests() > failing;
        memory.FailAt(-1);
      } catch (const c10::OutOfMemoryError&) {
        ExpectEqual(CopiesOf(parameters), before);
        EXPECT_TRUE(Saved(*optimizer) == saved);
        StepOrNothing(*optimizer);
      }
    }
    ExpectEqual(CopiesOf(parameters), want);
  }
  testing::Test::RecordProperty("allocations_of_step_" + std::to_string(failing_step),
                                failures - 1);
}

}  // namespace plimsoll::train

#include "train/optimizers/grad_scaler.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "train/optimizers/fused_adam.h"
#include "train/optimizers/grad_scaler_reference.h"
#include "train/optimizers/optimizers_for_tests.h"

namespace plimsoll::train::grad_scaler_test {
namespace {

namespace optim = torch::optim;

/// The sequence of tests/data/train/grad_scaler_reference.py.
class Reference {
 public:
  explicit Reference(GradScaler scaler) : scaler_(std::move(scaler)) {}

  void Run(std::size_t begin, std::size_t end) {
    for (std::size_t step = begin; step < end; ++step) {
      SCOPED_TRACE(step);
      Step(step);
      const GradScalerReference& want = kGradScalerReference[step];
      EXPECT_EQ(scaler_.scale(), want.scale);
      EXPECT_EQ(scaler_.state().growth_tracker, want.growth_tracker);
      const at::Tensor parameters = torch::cat({first_, second_});
      for (std::size_t i = 0; i < want.parameters.size(); ++i) {
        const double got = parameters[static_cast<std::int64_t>(i)].item<double>();
        EXPECT_NEAR(got, want.parameters[i], 1e-7 * std::abs(want.parameters[i])) << i;
      }
    }
  }

  GradScaler& scaler() { return scaler_; }

 private:
  static std::vector<float> Coefficients(std::size_t step, std::size_t count, bool is_first) {
    std::vector<float> values;
    for (std::size_t i = 0; i < count; ++i) {
      const double at = static_cast<double>(is_first ? 1 + 3 * step + i : 2 + 5 * step + i);
      values.push_back(static_cast<float>(is_first ? std::sin(at) : std::cos(at)));
    }
    const bool bad = step == 0 || step == 3 || step == 4 || step == 14;
    if (bad && is_first == (step % 2 == 1)) {
      values[1] = step == 3 ? std::numeric_limits<float>::quiet_NaN()
                            : std::numeric_limits<float>::infinity() * (step == 4 ? -1.f : 1.f);
    }
    return values;
  }

  void Step(std::size_t step) {
    optimizer_.zero_grad();
    const at::Tensor loss = (torch::tensor(Coefficients(step, 3, true)) * first_).sum() +
                            (torch::tensor(Coefficients(step, 2, false)) * second_).sum();
    scaler_.Scale(loss).backward();
    if (step % 4 == 3) {
      scaler_.Unscale(optimizer_);
      torch::nn::utils::clip_grad_norm_({first_, second_}, 0.5);
    }
    EXPECT_EQ(scaler_.Step(optimizer_), !kGradScalerReference[step].skipped);
    scaler_.Update();
  }

  at::Tensor first_ = torch::tensor({0.5, -1.0, 2.0}, at::kFloat).requires_grad_();
  at::Tensor second_ = torch::tensor({1.0, 3.0}, at::kFloat).requires_grad_();
  optim::SGD optimizer_{std::vector<at::Tensor>{first_, second_},
                        optim::SGDOptions(0.1).momentum(0.9)};
  GradScaler scaler_;
};

GradScalerOptions ReferenceOptions() {
  return {.initial_scale = 1024, .growth_factor = 2, .backoff_factor = 0.25, .growth_interval = 3};
}

TEST(GradScaler, DoesAsPythons) {
  Reference(GradScaler(ReferenceOptions())).Run(0, std::size(kGradScalerReference));
}

TEST(GradScaler, GoesOnFromItsState) {
  Reference reference{GradScaler(ReferenceOptions())};
  reference.Run(0, 9);
  const GradScaler::State state = reference.scaler().state();
  reference.scaler() = GradScaler();
  reference.scaler().Load(state);
  EXPECT_EQ(reference.scaler().state(), state);
  reference.Run(9, std::size(kGradScalerReference));
}

TEST(GradScaler, RefusesTheSecondUnscale) {
  const at::Tensor parameter = torch::ones({2}).requires_grad_();
  optim::SGD optimizer(std::vector<at::Tensor>{parameter}, optim::SGDOptions(0.1));
  GradScaler scaler;
  scaler.Scale(parameter.sum()).backward();
  scaler.Unscale(optimizer);
  EXPECT_THROW(scaler.Unscale(optimizer), c10::Error);
  EXPECT_TRUE(scaler.Step(optimizer));
  EXPECT_THROW(scaler.Step(optimizer), c10::Error);
  EXPECT_THROW(scaler.Unscale(optimizer), c10::Error);
  scaler.Update();
  EXPECT_THROW(scaler.Update(), c10::Error);
}

TEST(GradScaler, PassesThroughWhereItIsOff) {
  const at::Tensor parameter = torch::ones({2}).requires_grad_();
  optim::SGD optimizer(std::vector<at::Tensor>{parameter}, optim::SGDOptions(0.1));
  GradScaler scaler({.enabled = false});
  const at::Tensor loss = parameter.sum();
  EXPECT_TRUE(scaler.Scale(loss).is_same(loss));
  loss.backward();
  scaler.Unscale(optimizer);
  EXPECT_TRUE(scaler.Step(optimizer));
  scaler.Update();
  EXPECT_FLOAT_EQ(parameter[0].item<float>(), 0.9f);
  EXPECT_EQ(scaler.scale(), 1);
}

TEST(GradScaler, RefusesGradientsInHalf) {
  const at::Tensor parameter = torch::ones({2}, at::kHalf).requires_grad_();
  optim::SGD optimizer(std::vector<at::Tensor>{parameter}, optim::SGDOptions(0.1));
  GradScaler scaler;
  scaler.Scale(parameter.to(at::kFloat).sum()).backward();
  EXPECT_THROW(scaler.Unscale(optimizer), c10::Error);
}

/// Each allocation of unscaling, stepping and updating fails in turn; that call is repeated.
TEST(GradScaler, MayBeRepeatedWhenMemoryRunsOut) {
  CpuAllocator& memory = CpuAllocator::Installed();
  const auto repeated = [](auto call) {
    try {
      call();
      return false;
    } catch (const c10::OutOfMemoryError&) {
      call();
      return true;
    }
  };
  const auto run = [&](std::int64_t failing, bool& failed) {
    const std::vector<at::Tensor> parameters = SomeParameters();
    FusedAdamW optimizer(parameters, optim::AdamWOptions(0.1));
    GradScaler scaler;
    scaler.Scale(parameters[0].sum());
    SetGradients(parameters, 3);
    memory.FailAt(failing < 0 ? -1 : memory.requests() + failing);
    failed = repeated([&] { scaler.Step(optimizer); });
    failed = repeated([&] { scaler.Update(); }) || failed;
    memory.FailAt(-1);
    return CopiesOf(parameters);
  };
  bool failed = false;
  const std::vector<at::Tensor> want = run(-1, failed);
  failed = true;
  for (std::int64_t i = 0; failed; ++i) ExpectEqual(run(i, failed), want);
}

}  // namespace
}  // namespace plimsoll::train::grad_scaler_test

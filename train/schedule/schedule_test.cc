#include <gtest/gtest.h>
#include <torch/torch.h>

#include "train/schedule/ema.h"
#include "train/schedule/learning_rate.h"

namespace plimsoll::train::schedule_test {
namespace {

namespace nn = torch::nn;
using RateShape = ScheduleOptions::Shape;

const std::vector<ScheduleOptions>& EachShape() {
  static const std::vector<ScheduleOptions> all = {
      {.shape = RateShape::kConstant, .warm_up = 10},
      {.shape = RateShape::kLinear, .warm_up = 10, .steps = 110, .last = 0.1},
      {.shape = RateShape::kCosine, .warm_up = 10, .steps = 110},
      {.shape = RateShape::kInverseSquareRoot, .warm_up = 10},
      {.shape = RateShape::kStep, .warm_up = 10, .step_every = 30, .step_factor = 0.5},
      {.shape = RateShape::kOneCycle, .warm_up = 30, .first = 0.04, .steps = 100, .last = 1e-4},
      {.shape = RateShape::kPolynomial, .warm_up = 10, .steps = 110, .last = 0.01, .power = 2}};
  return all;
}

TEST(FactorAt, RisesToOneInTheWarmUpAndNeverAfter) {
  for (const ScheduleOptions& options : EachShape()) {
    SCOPED_TRACE(static_cast<int>(options.shape));
    EXPECT_GT(FactorAt(options, 0), options.first);
    for (std::int64_t step = 1; step < options.warm_up; ++step) {
      EXPECT_GT(FactorAt(options, step), FactorAt(options, step - 1));
    }
    EXPECT_DOUBLE_EQ(FactorAt(options, options.warm_up - 1), 1);
    for (std::int64_t step = options.warm_up; step < 200; ++step) {
      EXPECT_LE(FactorAt(options, step), FactorAt(options, step - 1));
      EXPECT_GE(FactorAt(options, step), options.last);
    }
  }
}

TEST(FactorAt, HasTheShapeThatItSays) {
  EXPECT_DOUBLE_EQ(FactorAt({}, 1000), 1);
  const ScheduleOptions linear{.shape = RateShape::kLinear, .steps = 100, .last = 0.2};
  EXPECT_DOUBLE_EQ(FactorAt(linear, 0), 1);
  EXPECT_DOUBLE_EQ(FactorAt(linear, 25), 0.8);
  EXPECT_DOUBLE_EQ(FactorAt(linear, 100), 0.2);
  EXPECT_DOUBLE_EQ(FactorAt(linear, 100000), 0.2);
  const ScheduleOptions cosine{.shape = RateShape::kCosine, .warm_up = 20, .steps = 120};
  EXPECT_DOUBLE_EQ(FactorAt(cosine, 9), 0.5);
  EXPECT_DOUBLE_EQ(FactorAt(cosine, 20), 1);
  EXPECT_NEAR(FactorAt(cosine, 20 + 50), 0.5, 1e-12);
  EXPECT_NEAR(FactorAt(cosine, 20 + 25), (1 + std::sqrt(0.5)) / 2, 1e-12);
  EXPECT_NEAR(FactorAt(cosine, 120), 0, 1e-12);
  const ScheduleOptions root{.shape = RateShape::kInverseSquareRoot, .warm_up = 100};
  EXPECT_DOUBLE_EQ(FactorAt(root, 399), 0.5);
  EXPECT_DOUBLE_EQ(FactorAt({.shape = RateShape::kInverseSquareRoot}, 3), 0.5)
      << "without a warm-up";
  const ScheduleOptions stairs{.shape = RateShape::kStep, .step_every = 10, .step_factor = 0.5};
  EXPECT_DOUBLE_EQ(FactorAt(stairs, 9), 1);
  EXPECT_DOUBLE_EQ(FactorAt(stairs, 10), 0.5);
  EXPECT_DOUBLE_EQ(FactorAt(stairs, 35), 0.125);
  const ScheduleOptions cycle{
      .shape = RateShape::kOneCycle, .warm_up = 40, .first = 0.2, .steps = 100};
  EXPECT_NEAR(FactorAt(cycle, 19), 0.6, 1e-12) << "half way up";
  EXPECT_NEAR(FactorAt(cycle, 70), 0.5, 1e-12);
  const ScheduleOptions square{
      .shape = RateShape::kPolynomial, .steps = 10, .last = 0.1, .power = 2};
  EXPECT_NEAR(FactorAt(square, 5), 0.1 + 0.9 * 0.25, 1e-12);
}

TEST(FactorAt, RefusesWhatCannotBe) {
  const std::vector<ScheduleOptions> bad = {
      {.warm_up = -1},
      {.shape = RateShape::kLinear},
      {.shape = RateShape::kCosine, .warm_up = 10, .steps = 10},
      {.shape = RateShape::kStep},
      {.shape = RateShape::kPolynomial, .steps = 10, .power = 0},
      {.first = -0.1},
      {.shape = RateShape::kLinear, .steps = 10, .last = NAN},
      {.shape = static_cast<RateShape>(99)}};
  for (const ScheduleOptions& options : bad) {
    EXPECT_THROW(FactorAt(options, 0), c10::Error);
  }
  EXPECT_THROW(FactorAt({}, -1), c10::Error);
}

TEST(ScheduleNumbers, BringTheOptionsBack) {
  for (const ScheduleOptions& options : EachShape()) {
    EXPECT_EQ(ScheduleFromNumbers(ScheduleNumbers(options)), options);
  }
  auto numbers = ScheduleNumbers(EachShape()[1]);
  numbers["steps"] = 1.5;
  EXPECT_THROW(ScheduleFromNumbers(numbers), c10::Error);
  numbers["steps"] = 110;
  numbers["shape"] = 7;
  EXPECT_THROW(ScheduleFromNumbers(numbers), c10::Error);
  numbers["shape"] = 1;
  EXPECT_NO_THROW(ScheduleFromNumbers(numbers));
  numbers["other"] = 1;
  EXPECT_THROW(ScheduleFromNumbers(numbers), c10::Error);
  EXPECT_THROW(ScheduleFromNumbers({}), c10::Error);
}

TEST(LearningRate, KeepsTheBaseOfEachGroup) {
  const at::Tensor a = torch::ones({1}).requires_grad_();
  const at::Tensor b = torch::ones({1}).requires_grad_();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{a}, std::make_unique<torch::optim::AdamOptions>(0.1));
  groups.emplace_back(std::vector<at::Tensor>{b},
                      std::make_unique<torch::optim::AdamOptions>(0.01));
  torch::optim::Adam optimizer(groups, torch::optim::AdamOptions(1));
  const ScheduleOptions options{.shape = RateShape::kLinear, .warm_up = 2, .steps = 10};
  LearningRate rate(optimizer, options);
  for (const std::int64_t step : {0, 5, 1, 9, 5}) {
    rate.Set(step);
    EXPECT_DOUBLE_EQ(optimizer.param_groups()[0].options().get_lr(), 0.1 * FactorAt(options, step));
    EXPECT_DOUBLE_EQ(optimizer.param_groups()[1].options().get_lr(),
                     0.01 * FactorAt(options, step));
  }
  EXPECT_EQ(rate.base_rates(), (std::vector<double>{0.1, 0.01}));
  optimizer.add_param_group(torch::optim::OptimizerParamGroup({torch::ones({1}).requires_grad_()}));
  EXPECT_THROW(rate.Set(1), c10::Error);
}

/// Parameters, running averages and a counter.
nn::Sequential NormedNet() {
  return nn::Sequential(nn::Linear(3, 4), nn::BatchNorm1d(4), nn::Linear(4, 2));
}

std::vector<at::Tensor> CopyOf(const nn::Module& module) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : module.parameters()) copies.push_back(tensor.detach().clone());
  for (const at::Tensor& tensor : module.buffers()) copies.push_back(tensor.detach().clone());
  return copies;
}

bool AllEqual(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& x, const at::Tensor& y) { return torch::equal(x, y); });
}

void TrainStep(nn::Sequential& model) {
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  optimizer.zero_grad();
  model->forward(torch::randn({8, 3})).square().mean().backward();
  optimizer.step();
}

TEST(Ema, AveragesAsTheFormulaSays) {
  torch::manual_seed(1);
  nn::Sequential model = NormedNet();
  for (const bool warm_up : {false, true}) {
    Ema ema(*model, {.decay = 0.9, .warm_up = warm_up});
    std::vector<at::Tensor> expected = CopyOf(*model);
    for (int n = 0; n < 200; ++n) {
      if (n < 5) TrainStep(model);
      const double decay = warm_up ? std::min(0.9, (1.0 + n) / (10.0 + n)) : 0.9;
      const std::vector<at::Tensor> now = CopyOf(*model);
      for (std::size_t i = 0; i < now.size(); ++i) {
        expected[i] =
            now[i].is_floating_point() ? decay * expected[i] + (1 - decay) * now[i] : now[i];
      }
      ema.Update();
    }
    const auto tensors = ema.tensors();
    ASSERT_EQ(tensors.size(), expected.size());
    EXPECT_EQ(tensors[0].first, "parameter 0.weight");
    EXPECT_EQ(tensors.back().first, "buffer 1.num_batches_tracked");
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(torch::allclose(tensors[i].second, expected[i], 1e-5, 1e-6)) << tensors[i].first;
    }
    EXPECT_EQ(ema.updates(), 200);
  }
}

TEST(Ema, SwapsInAndOutBitForBitHoweverItEnds) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    nn::Sequential model = NormedNet();
    model->to(type);
    Ema ema(*model, {.decay = 0.5});
    {
      const torch::NoGradGuard no_grad;
      for (const at::Tensor& parameter : model->parameters()) parameter.add_(1);
    }
    ema.Update();
    const std::vector<at::Tensor> own = CopyOf(*model);
    const std::vector<at::Tensor> handles = model->parameters();
    {
      const Ema::Swapped swapped = ema.SwapIn();
      EXPECT_FALSE(AllEqual(CopyOf(*model), own));
      EXPECT_TRUE(torch::equal(model->parameters()[0], ema.tensors()[0].second.to(type)));
      EXPECT_EQ(handles[0].scalar_type(), type);
      EXPECT_TRUE(handles[0].is_same(model->parameters()[0]));
      EXPECT_THROW(ema.Update(), c10::Error);
      EXPECT_THROW(static_cast<void>(ema.SwapIn()), c10::Error);
    }
    EXPECT_TRUE(AllEqual(CopyOf(*model), own));
    const auto averages = ema.tensors();
    const at::Tensor before = averages[0].second.clone();
    EXPECT_THROW(
        {
          const Ema::Swapped swapped = ema.SwapIn();
          throw std::runtime_error("the evaluation failed");
        },
        std::runtime_error);
    EXPECT_TRUE(AllEqual(CopyOf(*model), own));
    EXPECT_TRUE(torch::equal(averages[0].second, before));
    EXPECT_NO_THROW(ema.Update());
  }
}

TEST(Ema, KeepsSmallChangesOfSmallTypes) {
  nn::Sequential model(nn::Linear(2, 2));
  model->to(at::kBFloat16);
  const torch::NoGradGuard no_grad;
  model->parameters()[0].fill_(1);
  Ema ema(*model, {.decay = 0.9999, .warm_up = false});
  model->parameters()[0].fill_(2);
  for (int i = 0; i < 100; ++i) ema.Update();
  EXPECT_NEAR(ema.tensors()[0].second.mean().item<double>(), 1 + 1 - std::pow(0.9999, 100), 1e-5);
}

TEST(Ema, GoesOnFromWhatWasSaved) {
  torch::manual_seed(2);
  nn::Sequential model = NormedNet();
  Ema whole(*model);
  for (int i = 0; i < 3; ++i) {
    TrainStep(model);
    whole.Update();
  }
  Ema resumed(*model);
  const auto saved = whole.tensors();
  for (std::size_t i = 0; i < saved.size(); ++i) resumed.tensors()[i].second.copy_(saved[i].second);
  resumed.set_updates(whole.updates());
  TrainStep(model);
  whole.Update();
  resumed.Update();
  for (std::size_t i = 0; i < saved.size(); ++i) {
    EXPECT_TRUE(torch::equal(whole.tensors()[i].second, resumed.tensors()[i].second));
  }
}

TEST(Ema, RefusesWhatCannotBe) {
  nn::Sequential model = NormedNet();
  EXPECT_THROW(Ema(*model, {.decay = 1}), c10::Error);
  EXPECT_THROW(Ema(*model, {.decay = -0.1}), c10::Error);
  EXPECT_THROW(Ema(*model, {.decay = NAN}), c10::Error);
  Ema ema(*model);
  EXPECT_THROW(ema.set_updates(-1), c10::Error);
  model->parameters()[0].set_data(torch::ones({5}));
  EXPECT_THROW(ema.Update(), c10::Error);
}

}  // namespace
}  // namespace plimsoll::train::schedule_test

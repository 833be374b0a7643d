#include <gtest/gtest.h>

#include "train/light/channels.h"
#include "train/light/light_for_tests.h"
#include "train/light/masks.h"

namespace plimsoll::train::pruning_test {
namespace {

namespace nn = torch::nn;

std::int64_t Zeros(const at::Tensor& tensor) { return tensor.eq(0).sum().item<std::int64_t>(); }

TEST(WeightMasks, TakesTheSmallestAndKeepsThemZeroThroughTraining) {
  const SmallProblem problem = SmallProblem::Make();
  nn::Sequential model = SmallNet();
  // With momentum from before, which moves weights whose gradients are zero.
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-2));
  const auto step = [&] {
    optimizer.zero_grad();
    nn::functional::cross_entropy(model->forward(problem.inputs), problem.labels).backward();
    optimizer.step();
  };
  for (int i = 0; i < 60; ++i) step();
  const double dense = problem.Loss(model);
  WeightMasks masks(*model);
  const at::Tensor before = model->named_parameters()["0.weight"].detach().abs();
  const MaskReport report = masks.Prune(0.5);
  EXPECT_EQ(report.weights, 12 * 24 + 24 * 4);
  EXPECT_EQ(report.zeros, report.weights / 2);
  const at::Tensor mask = masks.masks()[0].second;
  EXPECT_LE(before.masked_select(mask.logical_not()).max().item<float>(),
            before.masked_select(mask).min().item<float>());
  const double pruned = problem.Loss(model);
  for (int i = 0; i < 60; ++i) {
    step();
    EXPECT_EQ(Zeros(model->named_parameters()["0.weight"].grad().masked_select(mask.logical_not())),
              12 * 24 / 2);
    masks.Apply();
  }
  EXPECT_EQ(Zeros(model->named_parameters()["0.weight"]), 12 * 24 / 2);
  EXPECT_GT(pruned, dense) << "half of the weights are missed";
  EXPECT_LT(problem.Loss(model), pruned) << "the others make up for it";
}

TEST(WeightMasks, PrunesStepByStepOverAllLayers) {
  torch::manual_seed(1);
  nn::Sequential model = SmallNet();
  WeightMasks masks(*model, {.global = true});
  masks.Prune(0.25);
  const at::Tensor first = masks.masks()[0].second.clone();
  const MaskReport report = masks.Prune(0.75);
  EXPECT_EQ(report.zeros, (12 * 24 + 24 * 4) * 3 / 4);
  EXPECT_FALSE((masks.masks()[0].second & ~first).any().item<bool>()) << "what is out stays out";
  EXPECT_EQ(masks.Prune(0.1).zeros, report.zeros);
  EXPECT_EQ(masks.Prune(1).zeros, report.weights);
  EXPECT_NE(report.ToString().find("saves no memory"), std::string::npos);
}

TEST(WeightMasks, LetsGoOfTheGradientsWhenItEnds) {
  nn::Sequential model = SmallNet();
  { WeightMasks(*model).Prune(1); }
  model->forward(torch::randn({3, 12})).square().sum().backward();
  EXPECT_GT(model->named_parameters()["2.bias"].grad().abs().sum().item<float>(), -1);
  model->named_parameters()["0.weight"].data().fill_(0.5);
  model->named_parameters()["2.weight"].data().fill_(0.5);
  model->zero_grad();
  model->forward(torch::ones({3, 12})).square().sum().backward();
  EXPECT_EQ(Zeros(model->named_parameters()["0.weight"].grad()), 0);
}

TEST(WeightMasks, RefusesWhatCannotBe) {
  nn::Sequential model = SmallNet();
  EXPECT_THROW(WeightMasks(*model).Prune(1.5), c10::Error);
  EXPECT_THROW(WeightMasks(*model).Prune(NAN), c10::Error);
  EXPECT_THROW(WeightMasks(*model, {.parameters = {"nothing"}}), c10::Error);
  EXPECT_THROW(WeightMasks(*nn::Sequential(nn::ReLU())), c10::Error);
  model->named_parameters()["0.weight"].data().fill_(NAN);
  EXPECT_THROW(WeightMasks(*model).Prune(0.5), c10::Error);
}

nn::Sequential SmallImageNet() {
  return nn::Sequential(
      nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)), nn::BatchNorm2d(8), nn::ReLU(),
      nn::MaxPool2d(2), nn::Conv2d(nn::Conv2dOptions(8, 6, 3).padding(1)), nn::ReLU(),
      nn::Flatten(), nn::Linear(6 * 16, 10), nn::Dropout(0.1), nn::ReLU(), nn::Linear(10, 5));
}

/// Channels that add nothing: their weights, biases and what normalizes them are zero.
void SilenceEverySecondChannel(nn::Sequential& model) {
  const torch::NoGradGuard no_grad;
  for (const auto& parameter : model->named_parameters()) {
    if (parameter.key().starts_with("10.")) continue;
    for (std::int64_t i = 0; i < parameter.value().size(0); i += 2) parameter.value()[i].zero_();
  }
}

TEST(PruneChannels, TakesOutChannelsThatAddNothingWithoutATrace) {
  torch::manual_seed(2);
  nn::Sequential model = SmallImageNet();
  SilenceEverySecondChannel(model);
  model->eval();
  const at::Tensor x = torch::randn({2, 3, 8, 8});
  // Its graph holds the weights, which would keep them from being pruned.
  const at::Tensor y = model->forward(x).detach();
  const LightReport report = PruneChannels(*model, {.fraction = 0.5});
  EXPECT_LT(LargestDifference(model->forward(x), y), 1e-5);
  ASSERT_EQ(report.changed.size(), 3U) << report.ToString();
  EXPECT_EQ(report.changed[0].to, "4 of 8 output channels");
  ASSERT_EQ(report.skipped.size(), 1U);
  EXPECT_EQ(report.skipped[0].layer, "10");
  EXPECT_EQ(report.skipped[0].reason, "makes the output of the chain");
  // 3 of 6 channels of 4 x 4 points, 5 of 10 features.
  EXPECT_EQ(report.after.parameters, (4 * 27 + 4) + (4 + 4) + (3 * 4 * 9 + 3) + (5 * 48 + 5) + 30);
  EXPECT_EQ(report.after.gradients, 4 * report.after.parameters);

  model->train();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  model->forward(x).sum().backward();
  optimizer.step();
  for (const at::Tensor& parameter : model->parameters()) {
    EXPECT_EQ(parameter.grad().sizes(), parameter.sizes());
  }
}

TEST(PruneChannels, LetsASmallNetLearnAgain) {
  const SmallProblem problem = SmallProblem::Make();
  nn::Sequential model = SmallNet(48);
  const double full = problem.Train(model, model->parameters(), 60);
  PruneChannels(*model, {.fraction = 0.75, .multiple = 8});
  EXPECT_EQ(model->named_parameters()["0.weight"].size(0), 16) << "12, rounded up";
  const double pruned = problem.Loss(model);
  EXPECT_GT(pruned, full);
  EXPECT_LT(problem.Train(model, model->parameters(), 60), pruned);
}

TEST(PruneChannels, RefusesWhereTheConsumerCannotBeKnown) {
  const auto reason = [](nn::Sequential model) {
    const auto before = FootprintOf(*model);
    const LightReport report = PruneChannels(*model, {.layers = {"0"}});
    EXPECT_TRUE(report.changed.empty());
    EXPECT_EQ(FootprintOf(*model), before);
    return report.skipped.at(0).reason;
  };
  const auto convolution = [](std::int64_t in, std::int64_t out, std::int64_t groups = 1) {
    return nn::Conv2d(nn::Conv2dOptions(in, out, 3).groups(groups));
  };
  EXPECT_NE(reason(nn::Sequential(convolution(3, 4), nn::GroupNorm(2, 4), convolution(4, 4)))
                .find("GroupNorm"),
            std::string::npos);
  EXPECT_EQ(reason(nn::Sequential(convolution(3, 4), convolution(4, 4, 2))),
            "is read by a convolution with groups");
  EXPECT_EQ(reason(nn::Sequential(convolution(4, 4, 2), convolution(4, 4))), "has groups");
  EXPECT_EQ(reason(nn::Sequential(convolution(3, 4), nn::Linear(4, 4))),
            "is read by a layer whose inputs are not its channels");
  EXPECT_EQ(reason(nn::Sequential(nn::Linear(3, 4), nn::Flatten(), nn::Linear(8, 4))),
            "is read by a layer whose inputs are not its channels");
  EXPECT_NE(reason(nn::Sequential(nn::Linear(3, 4), nn::MaxPool2d(2), nn::Linear(4, 4)))
                .find("MaxPool2d"),
            std::string::npos);
  EXPECT_NE(reason(nn::Sequential(convolution(3, 4), nn::Flatten(nn::FlattenOptions().start_dim(0)),
                                  nn::Linear(4, 4)))
                .find("Flatten"),
            std::string::npos);
  EXPECT_NE(
      reason(nn::Sequential(nn::Linear(3, 4), nn::Softmax(1), nn::Linear(4, 4))).find("Softmax"),
      std::string::npos);

  EXPECT_EQ(reason(nn::Sequential(nn::Linear(3, 0), nn::Linear(4, 4))), "has no output channels");

  nn::Sequential held = SmallNet();
  const torch::optim::SGD optimizer(held->parameters(), 0.1);
  EXPECT_NE(reason(held).find("optimizer"), std::string::npos);
}

TEST(PruneChannels, RefusesWhatCannotBe) {
  nn::Sequential model = SmallNet();
  EXPECT_THROW(PruneChannels(*model, {.fraction = 1}), c10::Error);
  EXPECT_THROW(PruneChannels(*model, {.fraction = -0.1}), c10::Error);
  EXPECT_THROW(PruneChannels(*model, {.multiple = 0}), c10::Error);
  EXPECT_THROW(PruneChannels(*model, {.layers = {"nothing"}}), c10::Error);
  EXPECT_THROW(PruneChannels(*nn::Sequential()), c10::Error);
  EXPECT_EQ(PruneChannels(*model, {.fraction = 0}).after, FootprintOf(*model));
}

}  // namespace
}  // namespace plimsoll::train::pruning_test

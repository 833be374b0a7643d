#include "train/parallel/pipeline/model_parallel.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "train/parallel/training_for_tests.h"

namespace plimsoll::train::model_parallel_test {
namespace {

/// Two names of one device stand for two.
const c10::Device kFirst(c10::kCPU);
const c10::Device kSecond(c10::kCPU, 0);

TEST(ModelParallel, TrainsAsOneDevice) {
  for (const std::string name : {"mlp", "deep gpt"}) {
    const auto right = SmallModel(name, 1);
    ModelParallel model(SmallModel(name, 1)->AsLayers(), {kFirst, kSecond}, WholeBatch(name, 0));
    torch::optim::SGD plain(right->parameters(), 0.1);
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    for (int step = 0; step < kSteps; ++step) {
      plain.zero_grad();
      optimizer.zero_grad();
      right->Loss(WholeBatch(name, step)).backward();
      model.Loss(WholeBatch(name, step)).backward();
      plain.step();
      optimizer.step();
    }
    const auto found = model.named_parameters();
    EXPECT_EQ(found.size(), right->parameters().size());
    for (const auto& named : right->named_parameters()) {
      EXPECT_LT(RelativeError(found[named.key()].detach(), named.value().detach()), 1e-6)
          << named.key();
    }
  }
}

/// A device without memory, which no parameter can go to.
TEST(ModelParallel, WhatGoesBetweenLayersIsOnTheirDevices) {
  std::vector<c10::Device> seen;
  const auto layer = [&](const Tensors& given, const Batch& rows) {
    EXPECT_TRUE(given.empty() || given[0].device() == rows.tensors[0].device());
    seen.push_back(rows.tensors[0].device());
    return Tensors{(given.empty() ? rows.tensors[0] : given[0]).sum()};
  };
  const ModelLayers layers(3, {{}, layer});
  const c10::Device meta = c10::kMeta;
  const ModelParallel model(layers, {kFirst, meta}, std::vector<int>{1, 2});
  EXPECT_EQ(model.Loss({{at::ones({2, 2})}}).device(), meta);
  EXPECT_EQ(seen, (std::vector{kFirst, meta, meta}));
}

TEST(ModelParallel, LayersThatShareParametersStayTogether) {
  const ModelParallel model(SmallModel("gpt", 1)->AsLayers(), {kFirst, kSecond},
                            std::vector<int>{2, 2});
  EXPECT_EQ(model.devices(), (std::vector{kFirst, kFirst, kSecond, kFirst}));
  EXPECT_EQ(FirstOfShared(SmallModel("gpt", 1)->AsLayers()), (std::vector{0, 1, 2, 0}));
  EXPECT_EQ(FirstOfShared(SmallModel("mlp", 1)->AsLayers()), (std::vector{0, 1, 2}));
  // Through another one: the third shares with the first and with the second.
  torch::nn::Linear a(1, 1), b(1, 1);
  const ModelLayers layers{
      {{{"a", a.ptr()}}, {}}, {{{"b", b.ptr()}}, {}}, {{{"a", a.ptr()}, {"b", b.ptr()}}, {}}};
  EXPECT_EQ(FirstOfShared(layers), (std::vector{0, 0, 0}));
}

/// The last layer is where the first is, so that device gets fewer of those between.
TEST(ModelParallel, TheFullestDeviceIsAsEmptyAsCanBe) {
  const std::vector<LayerFigures> alike(8, {.kept = 100, .saved = 20});
  EXPECT_EQ(SplitOverDevices({0, 1, 2, 3, 4, 5, 6, 7}, alike, 2), (std::vector{4, 4}));
  EXPECT_EQ(SplitOverDevices({0, 1, 2, 3, 4, 5, 6, 0}, alike, 2), (std::vector{3, 5}));
  EXPECT_THROW(SplitOverDevices({0}, {{}}, 2), c10::Error);
}

TEST(ModelParallel, RefusesWhatDoesNotGoTogether) {
  const auto layers = SmallModel("mlp", 1)->AsLayers();
  EXPECT_THROW(ModelParallel(layers, {kFirst, kSecond}, std::vector<int>{1, 1}), c10::Error);
  EXPECT_THROW(ModelParallel(layers, {kFirst}, std::vector<int>{1, 2}), c10::Error);
  EXPECT_THROW(ModelParallel(layers, {}, WholeBatch("mlp", 0)), c10::Error);
}

}  // namespace
}  // namespace plimsoll::train::model_parallel_test

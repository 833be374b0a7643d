#include "train/light/lora.h"

#include <gtest/gtest.h>

#include "train/budget/cpu_allocator.h"
#include "train/checkpointing/autocast.h"
#include "train/light/layers.h"
#include "train/light/light_for_tests.h"
#include "train/models/gpt.h"

namespace plimsoll::train::lora_test {
namespace {

namespace nn = torch::nn;

std::vector<std::string> NamesOf(const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

/// As if it had been trained.
void FillAdapters(nn::Module& model) {
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : TunedParameters(model)) tensor.normal_(0, 0.1);
}

at::Tensor GradientOfInput(const std::function<at::Tensor(at::Tensor)>& function, at::Tensor x) {
  x = x.detach().requires_grad_();
  return torch::autograd::grad({function(x).square().sum()}, {x})[0];
}

TEST(LightLayer, ComputesWhatTheLayerComputesThatItReplaces) {
  torch::manual_seed(1);
  const at::Tensor images = torch::randn({2, 4, 9, 8});
  const std::vector<nn::Conv2dOptions> all = {
      nn::Conv2dOptions(4, 6, 3).stride(2).padding(1),
      nn::Conv2dOptions(4, 6, {3, 2}).padding(torch::kSame).dilation(2),
      nn::Conv2dOptions(4, 6, 3).padding(torch::kValid).bias(false),
      nn::Conv2dOptions(4, 6, 3).padding({1, 2}).padding_mode(torch::kReflect),
      nn::Conv2dOptions(4, 6, 2).padding(torch::kSame).padding_mode(torch::kCircular),
      nn::Conv2dOptions(4, 6, 3).padding(1).padding_mode(torch::kReplicate).groups(2)};
  for (const auto& options : all) {
    nn::Conv2d plain(options);
    LightConv2d light(*plain);
    EXPECT_TRUE(torch::equal(plain(images), light(images)));
    EXPECT_TRUE(torch::equal(plain(images[0]), light(images[0]))) << "one image";
    EXPECT_TRUE(light->weight.is_same(plain->weight));
  }
  nn::Linear plain(8, 5);
  LightLinear light(*plain);
  EXPECT_LT(LargestDifference(plain(images), light(images)), 1e-6);
  torch::manual_seed(2);
  const nn::Linear first(8, 5);
  torch::manual_seed(2);
  EXPECT_TRUE(torch::equal(first->weight, LightLinear(8, 5)->weight)) << "the same first weights";
}

TEST(LightLayer, IsClonedWithAllThatItHas) {
  torch::manual_seed(1);
  nn::Sequential model(LightConv2d(nn::Conv2dOptions(3, 4, 3)), LightLinear(6, 5),
                       LightConv2d(nn::Conv2dOptions(4, 4, 3)));
  AddLora(*model, {.layers = {"0", "1"}});
  FillAdapters(*model);
  QuantizeWeights(*model, {"1"});
  model[2]->as<LightConv2d>()->MakeSeparable();
  const auto copy = std::dynamic_pointer_cast<nn::SequentialImpl>(model->clone());
  const at::Tensor x = torch::randn({1, 3, 8, 8});
  const at::Tensor y = model->forward(x);
  EXPECT_TRUE(torch::equal(copy->forward(x), y));
  for (auto& parameter : copy->parameters()) parameter.data().zero_();
  EXPECT_TRUE(torch::equal(model->forward(x), y)) << "the copy has tensors of its own";
  EXPECT_EQ(copy->named_parameters().keys(), model->named_parameters().keys());
}

TEST(AddLora, ChangesNothingAtFirstAndThenTrainsOnlyTheAdapters) {
  const SmallProblem problem = SmallProblem::Make();
  nn::Sequential model = SmallNet();
  const double before = problem.Loss(model);
  const LightReport report = AddLora(*model, {.adapter = {.rank = 2, .alpha = 4}});
  EXPECT_NEAR(problem.Loss(model), before, 1e-6);
  ASSERT_EQ(report.changed.size(), 2U);
  EXPECT_EQ(report.changed[0].layer, "0");
  EXPECT_EQ(report.after.parameters, report.before.parameters + 2 * (12 + 24) + 2 * (24 + 4));
  EXPECT_EQ(report.after.trained, 2 * (12 + 24) + 2 * (24 + 4));
  EXPECT_EQ(report.after.gradients, report.after.trained * 4);
  EXPECT_EQ(report.after.optimizer_state, report.after.trained * 8);

  const auto base = model->named_parameters()["0.weight"].detach().clone();
  const double after = problem.Train(model, TrainedParameters(*model), 100);
  EXPECT_LT(after, before / 2) << "the adapters learn";
  EXPECT_TRUE(torch::equal(model->named_parameters()["0.weight"], base));
  EXPECT_FALSE(model->named_parameters()["0.weight"].grad().defined());
  EXPECT_EQ(NamesOf(TunedParameters(*model)),
            (std::vector<std::string>{"0.adapter_down", "0.adapter_up", "2.adapter_down",
                                      "2.adapter_up"}));
}

TEST(AddLora, MergesAndUnmergesExactlyButForRounding) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    torch::manual_seed(4);
    nn::Sequential model(nn::Conv2d(nn::Conv2dOptions(3, 5, 3).stride(2).padding(1)), nn::ReLU(),
                         nn::Flatten(), nn::Linear(5 * 16, 4));
    model->to(type);
    AddLora(*model, {.adapter = {.rank = 3}});
    FillAdapters(*model);
    const double tolerance = type == at::kDouble ? 1e-12 : 1e-5;
    const at::Tensor x = torch::randn({2, 3, 8, 8}, type);
    const at::Tensor y = model->forward(x);
    const at::Tensor weight = model->named_parameters()["0.weight"].clone();
    MergeLora(*model);
    EXPECT_GT(LargestDifference(model->named_parameters()["0.weight"], weight), 1e-3);
    EXPECT_LT(LargestDifference(model->forward(x), y), tolerance);
    EXPECT_TRUE(TrainedParameters(*model).empty());
    EXPECT_THROW(MergeLora(*model), c10::Error);
    UnmergeLora(*model);
    EXPECT_LT(LargestDifference(model->named_parameters()["0.weight"], weight), tolerance / 10);
    EXPECT_LT(LargestDifference(model->forward(x), y), tolerance);
    EXPECT_EQ(TrainedParameters(*model).size(), 4U);
  }
}

TEST(AddLora, TakesNamesAndTrainsWhatElseItIsTold) {
  Gpt model({.vocabulary = 40, .context = 8, .width = 16, .layers = 2, .heads = 2});
  const LightReport report =
      AddLora(model, {.adapter = {.rank = 4}, .layers = {"*.qkv"}, .also_train = {"norm.*"}});
  EXPECT_EQ(report.changed.size(), 2U);
  EXPECT_EQ(NamesOf(TunedParameters(model)),
            (std::vector<std::string>{"blocks.0.qkv.adapter_down", "blocks.0.qkv.adapter_up",
                                      "blocks.1.qkv.adapter_down", "blocks.1.qkv.adapter_up",
                                      "norm.weight", "norm.bias"}));
  const at::Tensor tokens = torch::randint(40, {2, 8});
  model.Loss(tokens, tokens).backward();
  for (const at::Tensor& parameter : model.parameters()) {
    EXPECT_EQ(parameter.grad().defined(), parameter.requires_grad());
  }
}

TEST(AddLora, UsesDropoutInTrainingOnly) {
  nn::Sequential model(nn::Linear(50, 50));
  AddLora(*model, {.adapter = {.rank = 4, .dropout = 0.5}});
  FillAdapters(*model);
  const at::Tensor x = torch::randn({1, 50});
  EXPECT_GT(LargestDifference(model->forward(x), model->forward(x)), 1e-4);
  model->eval();
  EXPECT_TRUE(torch::equal(model->forward(x), model->forward(x)));
}

TEST(AddLora, SavesAndLoadsTheAdaptersAlone) {
  const std::string path = testing::TempDir() + "/adapters";
  nn::Sequential model = SmallNet();
  nn::Sequential other(std::dynamic_pointer_cast<nn::SequentialImpl>(model->clone()));
  for (nn::Sequential* net : {&model, &other}) AddLora(**net, {.adapter = {.rank = 2}});
  FillAdapters(*model);
  SaveTuned(path, *model);
  LoadTuned(path, *other);
  const at::Tensor x = torch::randn({3, 12});
  EXPECT_TRUE(torch::equal(model->forward(x), other->forward(x)));

  nn::Sequential wider = SmallNet();
  AddLora(*wider, {.adapter = {.rank = 3}});
  EXPECT_THROW(LoadTuned(path, *wider), c10::Error);
  nn::Sequential louder = SmallNet();
  AddLora(*louder, {.adapter = {.rank = 2, .alpha = 1}});
  EXPECT_THROW(LoadTuned(path, *louder), c10::Error);
  MergeLora(*model);
  EXPECT_THROW(SaveTuned(path, *model), c10::Error);
}

TEST(AddLora, RefusesWhatCannotBeAndChangesNothing) {
  nn::Sequential model = SmallNet();
  EXPECT_THROW(AddLora(*model, {.adapter = {.rank = 0}}), c10::Error);
  EXPECT_THROW(AddLora(*model, {.adapter = {.dropout = 1}}), c10::Error);
  EXPECT_THROW(AddLora(*model, {.adapter = {.alpha = NAN}}), c10::Error);
  EXPECT_THROW(AddLora(*model, {.layers = {"nothing"}}), c10::Error);
  EXPECT_THROW(AddLora(*nn::Sequential(nn::ReLU())), c10::Error);
  EXPECT_EQ(TrainedParameters(*model).size(), 4U);

  nn::Sequential grouped(nn::Conv2d(nn::Conv2dOptions(4, 4, 3).groups(2)),
                         nn::Conv2d(nn::Conv2dOptions(4, 4, 1)));
  const LightReport report = AddLora(*grouped);
  ASSERT_EQ(report.skipped.size(), 1U);
  EXPECT_EQ(report.skipped[0].reason, "has groups");
  EXPECT_EQ(AddLora(*SmallNet()).changed.size(), 2U);
  nn::Sequential twice = SmallNet();
  AddLora(*twice);
  EXPECT_THROW(AddLora(*twice), c10::Error) << "each has one already";
}

TEST(Int8Weight, IsWithinHalfAScale) {
  torch::manual_seed(5);
  at::Tensor weight = torch::randn({7, 3, 3, 3}) * torch::rand({7, 1, 1, 1}) * 10;
  weight[2].zero_();
  const Int8Weight int8 = Int8Weight::Of(weight);
  EXPECT_EQ(int8.values.scalar_type(), at::kChar);
  EXPECT_EQ(int8.scales.sizes(), (std::vector<std::int64_t>{7}));
  const at::Tensor error = (int8.Dequantized(at::kFloat) - weight).abs().flatten(1).amax(1);
  EXPECT_TRUE((error <= int8.scales * 0.5001).all().item<bool>());
  EXPECT_TRUE(torch::equal(int8.Dequantized(at::kFloat)[2], weight[2]));
  EXPECT_THROW(Int8Weight::Of(torch::full({2, 2}, INFINITY)), c10::Error);
  EXPECT_THROW(Int8Weight::Of(torch::empty({0, 2})), c10::Error);
  EXPECT_THROW(Int8Weight::Of(at::Tensor()), c10::Error);
}

TEST(Int8Weight, GivesTheGradientsOfTheDequantizedWeight) {
  torch::manual_seed(6);
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const double tolerance = type == at::kDouble ? 1e-12 : type == at::kFloat ? 1e-4 : 0.3;
    const ConvolutionGeometry geometry{{2, 1}, {1, 2}, {1, 2}, 2};
    for (const Geometry& way : {Geometry(), Geometry(geometry)}) {
      const at::Tensor weight = way ? torch::randn({6, 2, 3, 3}) : torch::randn({6, 8});
      const Int8Weight int8 = Int8Weight::Of(weight);
      const at::Tensor x = torch::randn({2, 4, 9, 8}).to(type);
      at::Tensor bias = torch::randn({6}).to(type).requires_grad_();
      const auto light = [&](const at::Tensor& in) { return ApplyInt8Weight(way, in, int8, bias); };
      const auto plain = [&](const at::Tensor& in) {
        return ApplyWeight(way, in, int8.Dequantized(type), bias);
      };
      EXPECT_LT(LargestDifference(light(x), plain(x)), tolerance);
      EXPECT_LT(LargestDifference(GradientOfInput(light, x), GradientOfInput(plain, x)),
                tolerance * 50);
      const auto of_bias = [&](const at::Tensor& y) {
        return torch::autograd::grad({y.sum()}, {bias})[0];
      };
      EXPECT_LT(LargestDifference(of_bias(light(x)), of_bias(plain(x))), tolerance);
    }
  }
}

TEST(Int8Weight, KeepsNothingOfTheDequantizedWeight) {
  CpuAllocator& memory = CpuAllocator::Installed();
  LightLinear layer(512, 512);
  layer->Quantize();
  at::Tensor x = torch::randn({4, 512}).requires_grad_();
  const Bytes before = memory.allocated();
  const at::Tensor y = layer(x);
  EXPECT_LE(memory.allocated() - before, 4 * 512 * 4 + 1024) << "the output alone";
  memory.ResetPeak();
  y.sum().backward();
  EXPECT_GE(memory.peak() - before, 512 * 512 * 4) << "and made again in backward";
  EXPECT_TRUE(x.grad().defined());
}

TEST(QuantizeWeights, WorksBelowAdapters) {
  const SmallProblem problem = SmallProblem::Make();
  nn::Sequential model = SmallNet(64);
  problem.Train(model, model->parameters(), 20);
  const double before = problem.Loss(model);
  const LightReport report = QuantizeWeights(*model);
  EXPECT_EQ(report.changed.size(), 2U);
  const Bytes weights = 12 * 64 + 64 * 4;
  const Bytes biases = 64 + 4;
  EXPECT_EQ(report.before.weights, 4 * (weights + biases));
  EXPECT_EQ(report.after.weights, weights + 4 * (64 + 4) + 4 * biases);
  EXPECT_NEAR(problem.Loss(model), before, 0.02) << "8 bits change little";
  AddLora(*model, {.adapter = {.rank = 4}});
  EXPECT_LT(problem.Train(model, TrainedParameters(*model), 100), before / 2);
  EXPECT_THROW(MergeLora(*model), c10::Error);
  EXPECT_NE(report.ToString().find("weight in 8 bits"), std::string::npos);

  const AutocastScope autocast(at::kCPU, at::kBFloat16);
  const at::Tensor loss =
      nn::functional::cross_entropy(model->forward(problem.inputs), problem.labels);
  loss.backward();
  EXPECT_NEAR(loss.item<double>(), problem.Loss(model), 0.05);
}

TEST(QuantizeWeights, GoesThroughCheckpointsBitForBit) {
  Gpt model({.vocabulary = 40, .context = 8, .width = 16, .layers = 3, .heads = 2, .dropout = 0.1});
  QuantizeWeights(model);
  AddLora(model, {.adapter = {.rank = 4, .dropout = 0.2}});
  FillAdapters(model);
  const at::Tensor tokens = torch::randint(40, {2, 8});
  const auto gradients = [&](const CheckpointPolicy& policy) {
    model.set_checkpoint_policy(policy);
    torch::manual_seed(5);
    return torch::autograd::grad({model.Loss(tokens, tokens)}, TrainedParameters(model));
  };
  const auto plain = gradients({});
  const auto checkpointed = gradients(CheckpointPolicy::All());
  ASSERT_EQ(plain.size(), 3U * 4 * 2);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(torch::equal(plain[i], checkpointed[i])) << i;
    EXPECT_GT(plain[i].abs().sum().item<double>(), 0) << i;
  }
}

TEST(QuantizeWeights, StaysInEightBitsThroughTo) {
  nn::Sequential model = SmallNet();
  model->to(at::kDouble);
  QuantizeWeights(*model, {"0"});
  model->to(at::kBFloat16);
  auto* layer = model[0]->as<LightLinear>();
  EXPECT_EQ(layer->named_parameters()["weight_int8"].scalar_type(), at::kChar);
  EXPECT_EQ(layer->named_parameters()["weight_scale"].scalar_type(), at::kFloat);
  EXPECT_EQ(model->forward(torch::randn({2, 12}, at::kBFloat16)).scalar_type(), at::kBFloat16);
  layer->Dequantize();
  EXPECT_EQ(layer->weight.scalar_type(), at::kBFloat16);
  EXPECT_FALSE(layer->weight.requires_grad());
  EXPECT_THROW(layer->Dequantize(), c10::Error);
}

TEST(QuantizeWeights, LeavesWhatIsNotFinite) {
  nn::Sequential model = SmallNet();
  model->named_parameters()["2.weight"].data()[0][0] = NAN;
  const LightReport report = QuantizeWeights(*model);
  EXPECT_EQ(report.changed.size(), 1U);
  ASSERT_EQ(report.skipped.size(), 1U);
  EXPECT_EQ(report.skipped[0].layer, "2");
  EXPECT_EQ(report.skipped[0].reason, "has weights that are not finite");
}

TEST(QuantizeWeights, LeavesWhatAnOptimizerHolds) {
  nn::Sequential model = SmallNet();
  {
    const torch::optim::SGD optimizer(model->parameters(), 0.1);
    const LightReport report = QuantizeWeights(*model);
    EXPECT_TRUE(report.changed.empty());
    ASSERT_EQ(report.skipped.size(), 2U);
    EXPECT_NE(report.skipped[0].reason.find("optimizer"), std::string::npos);
  }
  EXPECT_EQ(QuantizeWeights(*model).changed.size(), 2U);
}

TEST(NameMatches, TakesStarsForAnyCharacters) {
  EXPECT_TRUE(NameMatches("blocks.0.qkv", "*.qkv"));
  EXPECT_TRUE(NameMatches("blocks.0.qkv", "blocks.*.q*"));
  EXPECT_TRUE(NameMatches("", "*"));
  EXPECT_TRUE(NameMatches("abab", "*ab"));
  EXPECT_FALSE(NameMatches("blocks.0.qkv", "qkv"));
  EXPECT_FALSE(NameMatches("blocks", "blocks.*"));
  EXPECT_FALSE(NameMatches("a", ""));
}

}  // namespace
}  // namespace plimsoll::train::lora_test

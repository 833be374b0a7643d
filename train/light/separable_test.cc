#include "train/light/separable.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>

#include "train/light/light_layer.h"

namespace plimsoll::train::separable_test {
namespace {

namespace nn = torch::nn;

std::int64_t Parameters(const nn::Module& module) { return FootprintOf(module).parameters; }

nn::Conv2d Convolution(std::int64_t in, std::int64_t out, std::int64_t kernel) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, kernel).padding(kernel / 2));
}

/// How torch has it that a Sequential be put into another.
class NestedImpl : public nn::SequentialImpl {
 public:
  using SequentialImpl::SequentialImpl;
  at::Tensor forward(const at::Tensor& x) { return SequentialImpl::forward(x); }
};
TORCH_MODULE(Nested);

/// A module of one's own with a member that can become lighter, and one that cannot.
class OwnImpl : public nn::Module {
 public:
  OwnImpl() {
    register_module("light", light);
    register_module("typed", typed);
  }
  at::Tensor forward(const at::Tensor& x) { return typed(light(x)); }

  LightConv2d light{nn::Conv2dOptions(8, 8, 3).padding(1)};
  nn::Conv2d typed = Convolution(8, 8, 3);
};
TORCH_MODULE(Own);

/// Convolutions in a Sequential, a nested one, a ModuleList, a ModuleDict and a module of one's
/// own.
class Mixed : public nn::Module {
 public:
  Mixed() {
    inside->push_back("first", Convolution(3, 8, 3));
    inside->push_back("deeper", Nested(nn::ReLU(), Convolution(8, 8, 5)));
    inside->push_back("point", Convolution(8, 8, 1));
    inside->push_back("own", own);
    register_module("inside", inside);
    list->push_back(LightConv2d(nn::Conv2dOptions(8, 8, 3).padding(1)));
    list->push_back(Convolution(8, 8, 3));
    list->push_back(Nested(Convolution(8, 8, 3)));
    register_module("list", list);
    const std::vector<std::pair<std::string, std::shared_ptr<nn::Module>>> entries = {
        {"light", LightConv2d(nn::Conv2dOptions(8, 8, 3).padding(1)).ptr()},
        {"typed", Convolution(8, 4, 3).ptr()}};
    dict->update(entries);
    register_module("dict", dict);
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = inside->forward(x);
    y = list[0]->as<LightConv2d>()->forward(y);
    y = list[1]->as<nn::Conv2d>()->forward(y);
    y = list[2]->as<Nested>()->forward(y);
    y = dict["light"]->as<LightConv2d>()->forward(y);
    return dict["typed"]->as<nn::Conv2d>()->forward(y);
  }

  nn::Sequential inside;
  Own own;
  nn::ModuleList list;
  nn::ModuleDict dict;
};

TEST(SeparableConv2d, HasTheShapeOfTheWholeConvolution) {
  const auto options = nn::Conv2dOptions(6, 10, {3, 5})
                           .stride({2, 1})
                           .padding({1, 2})
                           .dilation(std::vector<std::int64_t>{1, 1});
  SeparableConv2d separable(options);
  const at::Tensor x = torch::randn({2, 6, 16, 12});
  EXPECT_EQ(separable(x).sizes(), nn::Conv2d(options)(x).sizes());
  EXPECT_EQ(Parameters(*separable), 6 * 3 * 5 + 6 * 10 + 10);
  EXPECT_EQ(Parameters(*separable->clone()), 6 * 3 * 5 + 6 * 10 + 10);
}

TEST(SeparableConv2d, IsAConvolutionWhoseFilterIsAProduct) {
  SeparableConv2d separable(nn::Conv2dOptions(3, 4, 3).padding(1).bias(false));
  const auto parameters = separable->parameters();
  const at::Tensor product = parameters[1] * parameters[0].view({1, 3, 3, 3});
  const at::Tensor x = torch::randn({1, 3, 8, 8});
  EXPECT_TRUE(torch::allclose(separable(x), at::conv2d(x, product, {}, 1, 1), 1e-4, 1e-5));
}

std::vector<std::string> Skipped(const LightReport& report) {
  std::vector<std::string> names;
  for (const auto& skip : report.skipped) names.push_back(skip.layer);
  return names;
}

TEST(ReplaceConvolutions, ReachesThroughEveryContainer) {
  Mixed model;
  model.eval();
  const LightReport report = ReplaceConvolutions(model);
  std::vector<std::string> changed;
  for (const auto& change : report.changed) changed.push_back(change.layer);
  EXPECT_EQ(changed,
            (std::vector<std::string>{"inside.first", "inside.deeper.1", "inside.own.light",
                                      "list.0", "list.2.0", "dict.light"}));
  EXPECT_EQ(Skipped(report),
            (std::vector<std::string>{"inside.point", "inside.own.typed", "list.1", "dict.typed"}));
  EXPECT_EQ(report.skipped[0].reason, "has a kernel smaller than 3x3");
  EXPECT_NE(report.skipped[1].reason.find("LightConv2d"), std::string::npos);
  const std::int64_t small = 8 * 9 + 8 * 8 + 8;
  const std::int64_t whole = 8 * 8 * 9 + 8;
  const std::int64_t separable = (3 * 9 + 3 * 8 + 8) + (8 * 25 + 8 * 8 + 8) + 4 * small;
  EXPECT_EQ(Parameters(model), separable + (8 * 8 + 8) + 2 * whole + (8 * 4 * 9 + 4));
  EXPECT_EQ(report.after.parameters, Parameters(model));
  EXPECT_EQ(report.after.weights, 4 * Parameters(model));
  EXPECT_EQ(report.after.gradients, 4 * Parameters(model));
  EXPECT_EQ(report.after.optimizer_state, 8 * Parameters(model));
  EXPECT_EQ(report.changed[2].before.parameters, whole);
  EXPECT_EQ(report.changed[2].after.parameters, small);
  const auto names = model.named_parameters().keys();
  EXPECT_EQ(names[0], "inside.first.depthwise.weight");
  EXPECT_NE(std::find(names.begin(), names.end(), "list.0.depthwise.weight"), names.end());

  const at::Tensor y = model.forward(torch::randn({2, 3, 8, 8}));
  EXPECT_EQ(y.sizes(), (std::vector<std::int64_t>{2, 4, 8, 8}));
  y.sum().backward();
  for (const auto& parameter : model.named_parameters()) {
    EXPECT_TRUE(parameter.value().grad().defined()) << parameter.key() << " is not used";
  }
  for (const auto& module : model.modules(false)) EXPECT_FALSE(module->is_training());
  EXPECT_TRUE(ReplaceConvolutions(model).changed.empty()) << "the second time nothing is left";
}

TEST(ReplaceConvolutions, LeavesWhatSomethingElseHolds) {
  nn::Conv2d shared = Convolution(4, 4, 3);
  nn::Sequential model(shared, Convolution(4, 4, 3));
  LightReport report = ReplaceConvolutions(*model);
  EXPECT_EQ(report.changed.size(), 1U);
  ASSERT_EQ(report.skipped.size(), 1U);
  EXPECT_NE(report.skipped[0].reason.find("beside its nn::Sequential"), std::string::npos);
  nn::Sequential twice;
  twice->push_back(shared);
  twice->push_back(shared);
  EXPECT_TRUE(ReplaceConvolutions(*twice).changed.empty());

  nn::Sequential trained(Convolution(4, 4, 3));
  const torch::optim::SGD optimizer(trained->parameters(), 0.1);
  report = ReplaceConvolutions(*trained);
  EXPECT_TRUE(report.changed.empty());
  EXPECT_NE(report.ToString().find("optimizer"), std::string::npos);
}

TEST(ReplaceConvolutions, TakesNames) {
  nn::Sequential model(Convolution(4, 4, 3), Convolution(4, 4, 3));
  EXPECT_EQ(ReplaceConvolutions(*model, {"1"}).changed.at(0).layer, "1");
  EXPECT_THROW(ReplaceConvolutions(*model, {"2"}), c10::Error);
}

TEST(ReplaceConvolutions, LearnsNearlyAsMuchWithLess) {
  const auto loss_after_training = [](bool separable) {
    torch::manual_seed(7);
    nn::Sequential model(Convolution(1, 12, 3), nn::ReLU(), Convolution(12, 12, 3), nn::ReLU(),
                         nn::AdaptiveMaxPool2d(1), nn::Flatten(), nn::Linear(12, 2));
    if (separable) ReplaceConvolutions(*model);
    // Which way a bright line lies.
    at::Tensor x = torch::randn({64, 1, 8, 8}) * 0.1;
    const at::Tensor labels = torch::arange(64).remainder(2);
    for (std::int64_t i = 0; i < 64; ++i) x[i][0].select(i % 2, i / 2 % 8).add_(1);
    torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-2));
    double loss = 0;
    for (int i = 0; i < 60; ++i) {
      optimizer.zero_grad();
      const at::Tensor now = nn::functional::cross_entropy(model->forward(x), labels);
      now.backward();
      optimizer.step();
      loss = now.item<double>();
    }
    return loss;
  };
  const double separable = loss_after_training(true);
  testing::Test::RecordProperty("separable", std::to_string(separable));
  testing::Test::RecordProperty("whole", std::to_string(loss_after_training(false)));
  EXPECT_LT(separable, 0.35) << "half of ln 2, the loss of one that guesses";
}

TEST(ReplaceConvolutions, KeepsTypePaddingAndBias) {
  nn::Sequential model(nn::Conv2d(
      nn::Conv2dOptions(2, 4, 3).padding(torch::kSame).padding_mode(torch::kReflect).bias(false)));
  model->to(at::kDouble);
  EXPECT_EQ(ReplaceConvolutions(*model).changed.size(), 1U);
  EXPECT_EQ(Parameters(*model), 2 * 9 + 2 * 4);
  const at::Tensor y = model->forward(torch::randn({1, 2, 6, 6}, at::kDouble));
  EXPECT_EQ(y.sizes(), (std::vector<std::int64_t>{1, 4, 6, 6}));
}

TEST(ReplaceConvolutions, LeavesWhatWouldGainNothing) {
  nn::Sequential model(nn::Conv2d(nn::Conv2dOptions(4, 4, 3).groups(2)), Convolution(4, 1, 3),
                       nn::ConvTranspose2d(nn::ConvTranspose2dOptions(4, 4, 3)));
  const LightReport report = ReplaceConvolutions(*model);
  EXPECT_TRUE(report.changed.empty());
  EXPECT_EQ(report.before, report.after);
  ASSERT_EQ(report.skipped.size(), 2U);
  EXPECT_EQ(report.skipped[0].reason, "has groups");
  EXPECT_EQ(report.skipped[1].reason, "would not become smaller");
}

}  // namespace
}  // namespace plimsoll::train::separable_test

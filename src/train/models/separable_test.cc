#include "train/models/separable.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace plimsoll::train {
namespace {

namespace nn = torch::nn;

std::int64_t Parameters(const nn::Module& module) {
  std::int64_t n = 0;
  for (const at::Tensor& parameter : module.parameters()) n += parameter.numel();
  return n;
}

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

/// One convolution in a Sequential, one in a nested one, and one as a member.
class Mixed : public nn::Module {
 public:
  Mixed() {
    inside->push_back("first", Convolution(3, 8, 3));
    inside->push_back("deeper", Nested(nn::ReLU(), Convolution(8, 8, 5)));
    inside->push_back("point", Convolution(8, 8, 1));
    register_module("inside", inside);
    register_module("member", member);
  }
  at::Tensor forward(const at::Tensor& x) { return member(inside->forward(x)); }

  nn::Sequential inside;
  nn::Conv2d member = Convolution(8, 4, 3);
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

TEST(ReplaceConvolutions, ReachesIntoSequentials) {
  Mixed model;
  model.eval();
  std::vector<std::string> out_of_reach;
  EXPECT_EQ(ReplaceConvolutions(model, &out_of_reach), 2);
  EXPECT_EQ(out_of_reach, std::vector<std::string>{"member"});
  const std::int64_t separable = (3 * 9 + 3 * 8 + 8) + (8 * 25 + 8 * 8 + 8);
  EXPECT_EQ(Parameters(model), separable + (8 * 8 + 8) + (8 * 4 * 9 + 4));
  EXPECT_EQ(model.named_parameters()[0].key(), "inside.first.depthwise.weight");

  const at::Tensor y = model.forward(torch::randn({2, 3, 8, 8}));
  EXPECT_EQ(y.sizes(), (std::vector<std::int64_t>{2, 4, 8, 8}));
  y.sum().backward();
  for (const at::Tensor& parameter : model.parameters()) EXPECT_TRUE(parameter.grad().defined());
  for (const auto& module : model.modules(false)) EXPECT_FALSE(module->is_training());
  EXPECT_EQ(ReplaceConvolutions(model), 0) << "the second time nothing is left";
}

TEST(ReplaceConvolutions, KeepsTypePaddingAndBias) {
  nn::Sequential model(nn::Conv2d(
      nn::Conv2dOptions(2, 4, 3).padding(torch::kSame).padding_mode(torch::kReflect).bias(false)));
  model->to(at::kDouble);
  EXPECT_EQ(ReplaceConvolutions(*model), 1);
  EXPECT_EQ(Parameters(*model), 2 * 9 + 2 * 4);
  const at::Tensor y = model->forward(torch::randn({1, 2, 6, 6}, at::kDouble));
  EXPECT_EQ(y.sizes(), (std::vector<std::int64_t>{1, 4, 6, 6}));
}

TEST(ReplaceConvolutions, LeavesGroupsAlone) {
  nn::Sequential model(nn::Conv2d(nn::Conv2dOptions(4, 4, 3).groups(2)),
                       nn::ConvTranspose2d(nn::ConvTranspose2dOptions(4, 4, 3)));
  EXPECT_EQ(ReplaceConvolutions(*model), 0);
}

}  // namespace
}  // namespace plimsoll::train

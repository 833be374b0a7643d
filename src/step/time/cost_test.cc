#include "step/time/cost.h"

#include <gtest/gtest.h>

#include "step/rules/testing.h"
#include "step/step_for_tests.h"

namespace plimsoll {
namespace {

using testing_step::Always;
using testing_step::Each;
using testing_step::StepMaker;

using Sizes = std::vector<std::int64_t>;

class CostTest : public testing::Test {
 protected:
  TensorUse Tensor(const Sizes& sizes, DType dtype = DType::kFloat32) {
    return maker_.MakeTensor(dtype, sizes);
  }
  Cost Of(std::string_view op, std::vector<Argument> args, const std::vector<TensorUse>& results) {
    const CallRecord record = maker_.MakeCall(op, std::move(args), results);
    const AtBatch at(maker_.step(), 2);
    return CostOf(Call(record, at, Phase::kForward));
  }
  CallMaker maker_;
};

TEST_F(CostTest, AProductTakesTwoOperationsForEachPairOfElements) {
  const Cost mm =
      Of("aten.mm.default", {Arg(Tensor({8, 16})), Arg(Tensor({16, 4}))}, {Tensor({8, 4})});
  EXPECT_EQ(mm.flops, 2.0 * 8 * 16 * 4);
  EXPECT_EQ(mm.bytes, 4.0 * (8 * 16 + 16 * 4 + 8 * 4));
  EXPECT_TRUE(mm.matrix);
  const Cost addmm =
      Of("aten.addmm.default", {Arg(Tensor({4})), Arg(Tensor({8, 16})), Arg(Tensor({16, 4}))},
         {Tensor({8, 4})});
  EXPECT_EQ(addmm.flops, mm.flops);
}

TEST_F(CostTest, AConvolutionSumsOverTheWeightsOfAChannel) {
  const Cost conv =
      Of("aten.convolution.default", {Arg(Tensor({2, 3, 8, 8})), Arg(Tensor({16, 3, 3, 3}))},
         {Tensor({2, 16, 8, 8}, DType::kFloat16)});
  EXPECT_EQ(conv.flops, 2.0 * (2 * 16 * 8 * 8) * (3 * 3 * 3));
  EXPECT_TRUE(conv.convolution);
  EXPECT_EQ(conv.dtype, DType::kFloat16);
}

TEST_F(CostTest, AViewTakesNothingAndWhatWorksInPlaceItsTraffic) {
  const auto no_memory = [&](std::string_view op) {
    CallRecord record = maker_.MakeCall(op, {Arg(Tensor({100}))}, {Tensor({100})});
    record.fresh.clear();
    const AtBatch at(maker_.step(), 2);
    return CostOf(Call(record, at, Phase::kForward));
  };
  EXPECT_EQ(no_memory("aten.view.default").bytes, 0);
  EXPECT_EQ(no_memory("aten.mul_.Tensor").bytes, 800);
}

TEST_F(CostTest, CallsThatMakeNoSenseTakeNoArithmetic) {
  EXPECT_EQ(Of("aten.mm.default", {}, {}).flops, 0);
  EXPECT_EQ(Of("aten.mm.default", {Arg(Tensor({8}))}, {Tensor({8})}).flops, 0);
  EXPECT_EQ(Of("aten.convolution.default", {}, {Tensor({8})}).flops, 0);
  EXPECT_EQ(Of("aten.convolution_backward.default", {Arg(Tensor({8}))}, {Tensor({8})}).flops, 0);
  EXPECT_EQ(Of("plimsoll.attention", {Arg(Tensor({8}))}, {Tensor({8})}).flops, 0);
}

TEST(StepTime, IsThatOfTheLastStepAndGrowsWithTheBatch) {
  StepMaker maker;
  maker.BeginStep();
  maker.Make("aten.relu.default", Each(1'000'000'000));
  maker.BeginStep();
  maker.Make("aten.relu.default", Each(1'000'000));
  const Gpu gpu = *FindGpu("H200");
  const double two = StepMicroseconds(maker.step, maker.variant(), gpu, 2000);
  const double four = StepMicroseconds(maker.step, maker.variant(), gpu, 4000);
  EXPECT_NEAR(four / two, 2, 0.01);
  // 8 GB at 4.8 TB/s, of which a part is reached.
  EXPECT_GT(two, 1e6 * 8e9 / 4.8e12);
  EXPECT_LT(two, 2e6 * 8e9 / 4.8e12);
}

TEST(StepTime, HasALeastForEachKernelAndNothingForNothing) {
  StepMaker maker;
  EXPECT_EQ(StepMicroseconds(maker.step, maker.variant(), *FindGpu("H200"), 2), 0);
  maker.Make("aten.relu.default", Always(1));
  const double one = StepMicroseconds(maker.step, maker.variant(), *FindGpu("H200"), 2);
  EXPECT_GT(one, 1);
  for (int i = 0; i < 9; ++i) maker.Make("aten.relu.default", Always(1));
  EXPECT_EQ(StepMicroseconds(maker.step, maker.variant(), *FindGpu("H200"), 2), 10 * one);
}

TEST(StepTime, WhatIsRefusedItsWorkspaceIsSlower) {
  StepMaker maker;
  maker.BeginStep();
  maker.Begin(Phase::kForward);
  testing_step::AddConvolution(maker);
  const Gpu gpu = *FindGpu("H200");
  const auto last = static_cast<std::uint32_t>(maker.variant().calls.size() - 1);
  const double with = StepMicroseconds(maker.step, maker.variant(), gpu, 4000);
  const double without = StepMicroseconds(maker.step, maker.variant(), gpu, 4000, {{last, 1}});
  EXPECT_GT(without, with);
  // No more than tensor cores are faster.
  EXPECT_LT(without, with * *gpu.rates.tf32 / gpu.rates.fp32);
  EXPECT_EQ(StepMicroseconds(maker.step, maker.variant(), gpu, 4000, {{last + 9, 1}}), with);
}

}  // namespace
}  // namespace plimsoll

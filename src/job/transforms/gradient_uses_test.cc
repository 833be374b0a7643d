#include "job/transforms/gradient_uses.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "job/lowering/job_for_tests.h"
#include "job/transforms/optimizer.h"

namespace plimsoll::gradient_uses_test {
namespace {

using testing_job::Always;
using testing_job::JobMaker;
using testing_job::TrainingLoop;

Result<Variant> Replaced(JobMaker& maker, std::string_view optimizer) {
  return ReplaceOptimizer(maker.job, maker.variant(), *ParseOptimizer(optimizer));
}

/// A step that updates its one parameter in line 9, behind what `between` does with the gradient.
template <typename Between>
JobMaker StepWith(Between between) {
  JobMaker maker;
  const TensorUse weight = maker.Floats(maker.Parameter(10), {Always(10)});
  maker.BeginStep();
  maker.Begin(Stage::kBackward);
  const Storage made = maker.Make("aten.mul.Tensor", Always(10));
  const TensorUse gradient = maker.Floats(made, {Always(10)});
  maker.Label(Category::kGradients, made);
  maker.Begin(Stage::kOptimizer);
  between(maker, gradient);
  const auto steps = [&](std::string_view op, std::vector<Argument> args) {
    maker.Make(op, Always(1), std::move(args));
    maker.last_call().fresh.clear();
    maker.last_call().where = maker.job.strings.Intern("train.py:9 in main");
  };
  steps("aten._foreach_add.List", {{Argument::List{Arg(gradient)}}, {Argument::List{Arg(weight)}}});
  steps("aten._foreach_add_.List",
        {{Argument::List{Arg(weight)}}, {Argument::List{Arg(gradient)}}});
  return maker;
}

/// What stands between is in line 7.
std::string UsedAt(const JobMaker& maker) {
  return GradientsUsedAt(maker.job, maker.job.variants.front());
}

TEST(GradientUses, AStepAloneIsNone) {
  EXPECT_EQ(UsedAt(StepWith([](JobMaker&, const TensorUse&) {})), "");
  EXPECT_EQ(UsedAt(TrainingLoop()), "");
}

TEST(GradientUses, WhatAnotherLineReadsOrChanges) {
  JobMaker norm = StepWith([](JobMaker& maker, const TensorUse& gradient) {
    maker.Make("aten.linalg_vector_norm.default", Always(1), {Arg(gradient)});
  });
  EXPECT_EQ(UsedAt(norm), "train.py:7 in step");
  const auto error = Replaced(norm, "sgd:in_backward");
  ASSERT_FALSE(error.ok());
  EXPECT_NE(error.error().message.find("train.py:7 in step uses the gradients before"),
            std::string::npos);
  EXPECT_TRUE(Replaced(norm, "sgd:fused").ok());
  EXPECT_EQ(UsedAt(StepWith([](JobMaker& maker, const TensorUse& gradient) {
              maker.Make("aten.div_.Scalar", Always(1), {Arg(gradient)});
            })),
            "train.py:7 in step");
}

TEST(GradientUses, InTheLineOfAFrameworkItsOperatorsTell) {
  const auto in_line_nine = [](std::string_view op) {
    return UsedAt(StepWith([&](JobMaker& maker, const TensorUse& gradient) {
      maker.Make(op, Always(1), {{Argument::List{Arg(gradient)}}});
      maker.last_call().where = maker.job.strings.Intern("train.py:9 in main");
    }));
  };
  EXPECT_EQ(in_line_nine("aten._foreach_norm.Scalar"), "train.py:9 in main");
  EXPECT_EQ(in_line_nine("aten._foreach_mul_.Tensor"), "train.py:9 in main") << "scales them";
  EXPECT_EQ(in_line_nine("aten._foreach_mul.Scalar"), "") << "of the optimizer";
  EXPECT_EQ(in_line_nine("aten._foreach_zero_.default"), "");
}

TEST(GradientUses, AScalerIsToldFromWhatClips) {
  constexpr std::string_view kUnscale = "aten._amp_foreach_non_finite_check_and_unscale_.default";
  constexpr std::string_view kNorm = "aten._foreach_norm.Scalar";
  const auto uses_of = [](std::vector<std::pair<std::string_view, std::string>> calls) {
    JobMaker maker = StepWith([&](JobMaker& made, const TensorUse& gradient) {
      for (const auto& [op, where] : calls) {
        made.Make(op, Always(1), {{Argument::List{Arg(gradient)}}});
        made.last_call().where = made.job.strings.Intern(where);
      }
    });
    std::vector<std::string>& lines = maker.variant().gradients_used.emplace();
    for (const auto& [op, where] : calls) {
      if (std::ranges::find(lines, where) == lines.end()) lines.push_back(where);
    }
    std::vector<std::pair<std::string, bool>> uses;
    for (const GradientUse& use : GradientUsesOf(maker.job, maker.variant())) {
      uses.emplace_back(use.at, use.by_scaler);
    }
    return uses;
  };
  using Uses = std::vector<std::pair<std::string, bool>>;
  EXPECT_EQ(uses_of({{kUnscale, "train.py:6 in main"}, {kNorm, "train.py:7 in main"}}),
            (Uses{{"train.py:6 in main", true}, {"train.py:7 in main", false}}));
  EXPECT_EQ(uses_of({{kUnscale, "train.py:6 in main"}, {kNorm, "train.py:6 in main"}}),
            (Uses{{"train.py:6 in main", false}}))
      << "a library unscales and clips in one line";
}

TEST(GradientUses, ACaptureTells) {
  JobMaker maker = TrainingLoop();
  maker.variant().gradients_used = {"train.py:5 in clip", "train.py:6 in log"};
  EXPECT_EQ(UsedAt(maker), "train.py:5 in clip");
  EXPECT_FALSE(Replaced(maker, "sgd:in_backward").ok());
  maker.variant().gradients_used.emplace();
  EXPECT_EQ(UsedAt(maker), "");
}

}  // namespace
}  // namespace plimsoll::gradient_uses_test

#include "job/transforms/optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "job/lowering/job_for_tests.h"
#include "job/lowering/lower.h"
#include "job/time/host_step.h"
#include "job/time/step_time.h"

namespace plimsoll::optimizer_test {
namespace {

using testing_job::Always;
using testing_job::JobMaker;
using testing_job::RequestsOf;
using testing_job::TrainingLoop;

Result<Variant> Replaced(JobMaker& maker, std::string_view optimizer) {
  const Result<OtherOptimizer> parsed = ParseOptimizer(optimizer);
  if (!parsed) return parsed.error();
  return ReplaceOptimizer(maker.job, maker.variant(), *parsed);
}

/// What the optimizer steps of the replaced variant ask for, over so many steps.
struct Asked {
  std::vector<Bytes> state;
  std::vector<Bytes> temporaries;
  std::string requests;
};
Asked AskedBy(JobMaker maker, std::string_view optimizer, int steps = 5) {
  Result<Variant> replaced = Replaced(maker, optimizer);
  EXPECT_TRUE(replaced.ok()) << replaced.error().ToLine();
  const Lowered lowered =
      Lower(maker.job, *replaced, *FindGpu("H200"), {.batch = 2, .steps = steps});
  Asked asked{.requests = RequestsOf(lowered)};
  for (std::size_t i = 0; i < lowered.workload.requests.size(); ++i) {
    const Request& r = lowered.workload.requests[i];
    if (r.kind != Request::Kind::kAllocate) continue;
    const Category category = lowered.blocks[r.allocation].category;
    if (category == Category::kOptimizerState) asked.state.push_back(r.size);
    if (lowered.moments[i].stage == Stage::kOptimizer && category == Category::kTemporaries) {
      asked.temporaries.push_back(r.size);
    }
  }
  return asked;
}

using Sizes = std::vector<Bytes>;

/// SGD for the first steps, and AdamW for all parameters from a later one on.
TEST(OptimizerOf, IsNoneWhereTheScriptChangesItsOptimizerLater) {
  JobMaker maker;
  const Storage parameter = maker.Parameter(10);
  maker.BeginStep();
  maker.Begin(Stage::kOptimizer);
  const auto update = [&](std::string_view op) {
    maker.Make(op, Always(1), {{Argument::List{Arg(maker.Floats(parameter, {Always(10)}))}}});
    maker.last_call().fresh.clear();
  };
  update("aten._foreach_add_.List");
  EXPECT_EQ(OptimizerOf(maker.job, maker.variant()).name, "sgd");
  std::vector<JobEvent>& events = maker.variant().events;
  const std::size_t captured = events.size();
  maker.Begin(Stage::kOptimizer);
  update("aten._foreach_lerp_.Scalar");
  update("aten._foreach_addcdiv_.ScalarList");
  Part part{.stage = Stage::kStep};
  part.events.assign(events.begin() + static_cast<std::ptrdiff_t>(captured), events.end());
  events.resize(captured);
  maker.variant().later.push_back(std::move(part));
  EXPECT_NE(OptimizerOf(maker.job, maker.variant()).name, "sgd");
  // A change leaves out steps that it did not rewrite, and must say so: what is left may well fit.
  ASSERT_TRUE(maker.job.not_followed.empty());
  const Variant changed = JobEditor(maker.job, maker.variant(), "test").Take();
  EXPECT_TRUE(changed.later.empty());
  EXPECT_EQ(maker.job.not_followed.size(), 1U);
}

/// The loop has one parameter of 4000 bytes; its captured optimizer is nothing that exists.
TEST(OptimizerOf, IsNoneWhereAPartOfTheParametersHasAnother) {
  JobMaker maker;
  const Storage one = maker.Parameter(10);
  const Storage other = maker.Parameter(20);
  maker.BeginStep();
  maker.Begin(Stage::kOptimizer);
  const auto update = [&](std::string_view op, std::initializer_list<Storage> parameters) {
    Argument::List list;
    for (const Storage p : parameters) list.push_back(Arg(maker.Floats(p, {Always(10)})));
    maker.Make(op, Always(1), {{list}});
    maker.last_call().fresh.clear();
  };
  update("aten._fused_adamw_.default", {one});
  EXPECT_EQ(OptimizerOf(maker.job, maker.variant()).name, "adamw") << "the other is not updated";
  update("aten._foreach_add_.List", {other});
  EXPECT_EQ(OptimizerOf(maker.job, maker.variant()).name, "");
  update("aten._fused_adamw_.default", {other});
  EXPECT_EQ(OptimizerOf(maker.job, maker.variant()).name, "adamw");
}

/// Each group has calls of its own, and so has each step among what follows the captured ones.
TEST(OptimizerOf, AdamStaysAdamHoweverOftenItSteps) {
  for (const bool decays : {false, true}) {
    JobMaker maker;
    const Storage one = maker.Parameter(10);
    maker.BeginStep();
    maker.Begin(Stage::kOptimizer);
    const auto update = [&](std::string_view op) {
      maker.Make(op, Always(1), {{Argument::List{Arg(maker.Floats(one, {Always(10)}))}}});
      maker.last_call().fresh.clear();
    };
    for (int group = 0; group < 3; ++group) {
      if (decays) update("aten._foreach_mul_.Scalar");
      update("aten._foreach_lerp_.Scalar");
      update("aten._foreach_mul_.Scalar");
      update("aten._foreach_addcdiv_.ScalarList");
    }
    EXPECT_EQ(OptimizerOf(maker.job, maker.variant()).name, decays ? "adamw" : "adam");
  }
}

TEST(ReplaceOptimizer, SgdHasNoState) {
  const Asked sgd = AskedBy(TrainingLoop(), "sgd");
  EXPECT_EQ(sgd.state, Sizes{});
  EXPECT_EQ(sgd.temporaries, Sizes{});
  EXPECT_EQ(sgd.requests.find("8000"), std::string::npos) << "what was captured is gone";
  EXPECT_EQ(sgd.requests.find("4004"), std::string::npos);
}

TEST(ReplaceOptimizer, StateIsMadeOnceAndTheListInEveryStep) {
  const Asked adamw = AskedBy(TrainingLoop(), "adamw", 5);
  EXPECT_EQ(adamw.state, (Sizes{4000, 4000}));
  EXPECT_EQ(adamw.temporaries, Sizes(5, 4000));
  EXPECT_EQ(AskedBy(TrainingLoop(), "sgd_momentum").state, Sizes{4000});
  EXPECT_EQ(AskedBy(TrainingLoop(), "adam_amsgrad").state, Sizes(3, 4000));
}

TEST(ReplaceOptimizer, FusedCountsItsStepsOnTheDeviceAndHasNoList) {
  const Asked fused = AskedBy(TrainingLoop(), "adamw:fused");
  EXPECT_EQ(fused.state, (Sizes{4, 4000, 4000}));
  EXPECT_EQ(fused.temporaries, Sizes{});
}

TEST(ReplaceOptimizer, InALoopOneParameterAtATime) {
  JobMaker maker = TrainingLoop();
  const Asked loop = AskedBy(std::move(maker), "adam:for", 1);
  EXPECT_EQ(loop.temporaries, (Sizes{4000, 4000}));
}

TEST(ReplaceOptimizer, EightBitStateIsAQuarterAndHasScales) {
  // 1000 elements: a byte each, and 4 blocks of 256.
  EXPECT_EQ(AskedBy(TrainingLoop(), "adam8bit").state, (Sizes{4, 1000, 16, 1000, 16}));
}

TEST(ReplaceOptimizer, WhatIsNotTrainedHasNoState) {
  JobMaker maker;
  maker.Parameter(10, /*trainable=*/false);
  maker.Parameter(20);
  maker.BeginStep();
  maker.Begin(Stage::kOptimizer);
  EXPECT_EQ(AskedBy(std::move(maker), "sgd_momentum").state, Sizes{80});
}

TEST(ReplaceOptimizer, TheRestOfTheStepStays) {
  JobMaker maker = TrainingLoop();
  const Lowered before = Lower(maker.job, maker.variant(), *FindGpu("H200"), {.batch = 2});
  Result<Variant> replaced = Replaced(maker, "sgd");
  ASSERT_TRUE(replaced.ok());
  const Lowered after = Lower(maker.job, *replaced, *FindGpu("H200"), {.batch = 2});
  const auto outside = [](const Lowered& lowered) {
    Sizes sizes;
    for (std::size_t i = 0; i < lowered.moments.size(); ++i) {
      if (lowered.moments[i].stage != Stage::kOptimizer) {
        sizes.push_back(lowered.workload.requests[i].size);
      }
    }
    return sizes;
  };
  EXPECT_EQ(outside(before), outside(after));
  EXPECT_TRUE(after.unknown.empty()) << after.unknown.begin()->first;
}

TEST(ReplaceOptimizer, UnknownNamesAreAnsweredWithTheKnownOnes) {
  JobMaker maker = TrainingLoop();
  const Result<Variant> lion = Replaced(maker, "lion");
  ASSERT_FALSE(lion.ok());
  EXPECT_EQ(lion.error().message, "optimizer 'lion' is not known");
  for (const std::string_view name : OptimizerNames()) {
    EXPECT_NE(lion.error().hint.find(name), std::string::npos) << name;
    EXPECT_TRUE(Replaced(maker, name).ok()) << name;
  }
}

TEST(ReplaceOptimizer, AFormThatItHasNotIsRefused) {
  JobMaker maker = TrainingLoop();
  EXPECT_TRUE(Replaced(maker, "adamw:foreach").ok());
  for (const char* name : {"adamw:quick", "nadam:fused"}) {
    const Result<Variant> replaced = Replaced(maker, name);
    ASSERT_FALSE(replaced.ok()) << name;
    EXPECT_NE(replaced.error().hint.find("foreach"), std::string::npos);
  }
}

TEST(ParseOptimizer, WhatIsReadIsPrintedTheSame) {
  for (const char* text : {"sgd", "adamw", "adamw:foreach", "adamw:fused", "adam:for", "adamw:host",
                           "adam8bit", "sgd:in_backward", "adamw:fused:in_backward"}) {
    const Result<OtherOptimizer> parsed = ParseOptimizer(text);
    ASSERT_TRUE(parsed.ok()) << parsed.error().ToLine();
    EXPECT_EQ(OptimizerText(*parsed), text);
  }
  EXPECT_EQ(OptimizerText(*ParseOptimizer("adamw:in_backward:fused")), "adamw:fused:in_backward");
}

TEST(ReplaceOptimizer, InTheBackwardNoGradientWaits) {
  // A weight, a batch and an activation; then the gradient, its momentum (in the first step), and
  // both gradient and activation are gone before the backward ends.
  const Asked asked = AskedBy(TrainingLoop(), "sgd_momentum:in_backward", 2);
  EXPECT_EQ(asked.state, Sizes{4000});
  EXPECT_EQ(asked.requests,
            "+4000 +800 +4000 +4000 +4000 -4000 -4000 +800 -800 +4000 +4000 -4000 -4000");
}

TEST(ReplaceOptimizer, GradientsThatStayCannotBeUpdatedInTheBackward) {
  JobMaker maker = TrainingLoop();
  std::erase_if(maker.variant().events, [](const JobEvent& event) {
    return event.kind == JobEvent::Kind::kLabel && event.category == Category::kGradients;
  });
  EXPECT_FALSE(Replaced(maker, "sgd:in_backward").ok());
}

TEST(ReplaceOptimizer, OnTheHostNothingIsMadeOnTheDevice) {
  // The weight, then a batch, an activation and a gradient in each step.
  const Asked asked = AskedBy(TrainingLoop(), "adamw:host", 2);
  EXPECT_EQ(asked.state, Sizes{});
  EXPECT_EQ(asked.requests, "+4000 +800 +4000 +4000 -4000 +800 -800 +4000 -4000 +4000 -4000");
  JobMaker maker = TrainingLoop();
  EXPECT_FALSE(Replaced(maker, "adamw:host:in_backward").ok());
  EXPECT_FALSE(Replaced(maker, "adam8bit:host").ok());
}

TEST(ReplaceOptimizer, OnTheHostTheStepTakesItsTime) {
  JobMaker maker = TrainingLoop();
  const auto time_of = [&](std::string_view name) {
    const Result<Variant> replaced = Replaced(maker, name);
    return StepTime(maker.job, *replaced, *FindGpu("H200"), 2);
  };
  const StepDuration host = time_of("adamw:host");
  const StepDuration device = time_of("adamw:fused");
  // 1000 elements of 28 bytes.
  EXPECT_GT(host.host_us, device.gpu.us + 1000 * 28 / kHostMemoryRate);
  EXPECT_GT(host.us, device.us);
}

TEST(ReplaceOptimizer, BetweenPassesItDoesNotStep) {
  JobMaker maker = TrainingLoop();
  const auto steps_of = [&] {
    const Result<Variant> replaced = Replaced(maker, "adamw:host");
    const auto& calls = replaced->calls;
    return std::count_if(calls.begin(), calls.end(), [&](const CallRecord& call) {
      return maker.job.strings[call.op] == "plimsoll.host_step_";
    });
  };
  EXPECT_EQ(steps_of(), 3);
  maker.Begin(Stage::kForward);
  maker.Begin(Stage::kOptimizer);
  EXPECT_EQ(steps_of(), 3);
}

TEST(ReplaceOptimizer, AdafactorKeepsARowAndAColumn) {
  // 4000 bytes in one dimension are kept as they are; the measured sizes of matrices are in
  // tests/data/operators.
  EXPECT_EQ(AskedBy(TrainingLoop(), "adafactor").state, Sizes{4000});
}

}  // namespace
}  // namespace plimsoll::optimizer_test

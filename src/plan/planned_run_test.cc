#include "plan/planned_run.h"

#include <gtest/gtest.h>

#include "files/input.h"
#include "job/file/step_file.h"
#include "job/rules/calibration.h"
#include "plan/choice_for_tests.h"
#include "plan/evaluate.h"

namespace plimsoll::planned_run_test {
namespace {

class PlannedRunTest : public testing::Test {
 protected:
  /// The run that is shown takes what the plan says of it.
  void ExpectSameMemory(const Choice& choice) const {
    const Result<PlannedRun> run = RunOf(request_, choice);
    ASSERT_TRUE(run.ok()) << run.error().ToLine();
    const Result<Trial> trial = Trial::Of(run->setting);
    ASSERT_TRUE(trial.ok()) << trial.error().ToLine();
    const Result<Way> outcome = Evaluator(request_).EvaluateWhole(choice);
    ASSERT_TRUE(outcome.ok()) << outcome.error().ToLine();
    const TrialResult shown = trial->WithRanges();
    EXPECT_EQ(shown.needs.reserved.best, outcome->trial.needs.reserved.best);
    EXPECT_EQ(shown.needs.device.high, outcome->trial.needs.device.high);
  }

  const Job job_ = *ReadJob(*Input::Open(PLIMSOLL_TEST_DATA "/steps/vgg16_sgdm.step.json.gz"));
  const PlanRequest request_ = {.job = job_,
                                .gpu = *FindGpu("H200"),
                                .options = {.calibration = Calibration::BuiltIn("H200")},
                                .samples = 16};
};

TEST_F(PlannedRunTest, TakesWhatThePlanSays) {
  const Choice captured{.batch = 16};
  ExpectSameMemory(captured);
  ExpectSameMemory(
      WithSettings(captured, {"precision=amp_bf16", "allocator=expandable_segments:True"}));
  ExpectSameMemory(WithSettings({.batch = 4}, {"accumulation=4"}));
}

TEST_F(PlannedRunTest, MicroBatchesThatRepeatTheLastAreLeftOut) {
  EXPECT_EQ(RunOf(request_, {.batch = 16})->micro_batches, 1);
  const Choice many = WithSettings({.batch = 1}, {"accumulation=16"});
  const Result<PlannedRun> run = RunOf(request_, many);
  ASSERT_TRUE(run.ok());
  EXPECT_EQ(run->micro_batches, 2);
  EXPECT_EQ(run->setting.batch, 1);
}

TEST_F(PlannedRunTest, WhatCannotBeSetTogetherIsRefused) {
  const Choice odd =
      WithSettings({.batch = 8}, {"accumulation=2", "optimizer=sgd_momentum:fused:in_backward"});
  EXPECT_FALSE(RunOf(request_, odd).ok());
}

}  // namespace
}  // namespace plimsoll::planned_run_test

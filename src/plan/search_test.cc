#include "plan/search.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/input.h"
#include "plan/lever.h"
#include "step/calibration.h"
#include "step/file/step_file.h"
#include "step/transforms/checkpoint.h"

namespace plimsoll {
namespace {

Step ReadIt(const std::string& name) {
  return *ReadStep(*Input::Open(PLIMSOLL_TEST_DATA "/steps/" + name + ".step.json.gz"));
}

class PlanTest : public testing::Test {
 protected:
  PlanJob Job(std::int64_t samples, std::optional<Bytes> limit = {}) const {
    return {.step = step_,
            .gpu = gpu_,
            .options = {.calibration = Calibration::BuiltIn("H200"), .limit = limit},
            .samples = samples};
  }
  static Plan Find(const PlanJob& job) {
    const Result<Plan> plan = FindPlan(job);
    EXPECT_TRUE(plan.ok()) << plan.error().ToLine();
    return *plan;
  }

  Step step_ = ReadIt("gpt2_adamw_fp32");
  Gpu gpu_ = *FindGpu("H200");
};

TEST_F(PlanTest, WhatIsShownFitsAndIsSorted) {
  for (const Bytes limit : {Bytes{6} << 30, Bytes{9} << 30, Bytes{14} << 30}) {
    const Plan plan = Find(Job(8, limit));
    ASSERT_FALSE(plan.ways.empty());
    EXPECT_FALSE(plan.closest.has_value());
    double last = plan.ways.front().SamplesPerSecond();
    for (const Outcome& way : plan.ways) {
      EXPECT_TRUE(way.surely_fits);
      EXPECT_EQ(way.choice.Samples(), 8);
      EXPECT_LE(way.SamplesPerSecond(), last);
      EXPECT_FALSE(LeversOf(Job(8), way.choice).empty()) << "as captured it needs 14.8 GiB";
      last = way.SamplesPerSecond();
    }
  }
}

TEST_F(PlanTest, MoreRoomIsNeverSlower) {
  double last = 0;
  for (int gib = 5; gib <= 17; gib += 3) {
    const Plan plan = Find(Job(8, Bytes{gib} << 30));
    ASSERT_FALSE(plan.ways.empty()) << gib;
    EXPECT_GE(plan.ways.front().SamplesPerSecond(), last) << gib;
    last = plan.ways.front().SamplesPerSecond();
  }
}

TEST_F(PlanTest, KeepsTheResultsWhereAskedTo) {
  PlanJob job = Job(8, Bytes{9} << 30);
  job.keep_numerics = true;
  for (const Outcome& way : Find(job).ways) {
    for (const PlanLever* lever : LeversOf(job, way.choice)) {
      EXPECT_EQ(lever->numerics(job), Numerics::kSame) << lever->name;
    }
  }
}

TEST_F(PlanTest, SaysWhatComesClosestAndWhichCardWouldDo) {
  const Plan plan = Find(Job(8, Bytes{1} << 30));
  EXPECT_TRUE(plan.ways.empty());
  ASSERT_TRUE(plan.closest.has_value());
  EXPECT_EQ(plan.closest->choice.batch, 1);
  ASSERT_TRUE(plan.smallest_card.has_value());
  EXPECT_GT(plan.smallest_card->memory, Bytes{2} << 30);
}

/// Every number of passes and of first blocks, against what the search finds.
TEST_F(PlanTest, IsTheBestOfAllThatThereIs) {
  PlanJob job = Job(8, Bytes{7} << 30);
  job.keep_numerics = true;
  const Plan plan = Find(job);
  ASSERT_FALSE(plan.ways.empty());
  Evaluator evaluator(job);
  const std::vector<std::string> blocks = CheckpointBlocks(step_, step_.variants[0]);
  double best = 0;
  for (const bool expandable : {false, true}) {
    for (const int passes : {1, 2, 4, 8}) {
      for (std::size_t count = 0; count <= blocks.size(); ++count) {
        Choice choice = job.AsCaptured();
        choice.expandable_segments = expandable;
        choice.passes = passes;
        choice.batch = 8 / passes;
        choice.checkpointed.assign(blocks.begin(), blocks.begin() + std::ptrdiff_t(count));
        const Result<Outcome> outcome = evaluator.Evaluate(choice);
        ASSERT_TRUE(outcome.ok());
        if (outcome->surely_fits) best = std::max(best, outcome->SamplesPerSecond());
      }
    }
  }
  EXPECT_GE(plan.ways.front().SamplesPerSecond(), 0.99 * best);
}

TEST_F(PlanTest, EveryLeverCanBeTold) {
  const PlanJob job = Job(8);
  Choice choice = job.AsCaptured();
  choice.tf32 = choice.expandable_segments = true;
  choice.optimizer = OptimizerForm::kFused;
  choice.passes = 2;
  choice.checkpointed = {"transformer.h.0"};
  const std::vector<const PlanLever*> used = LeversOf(job, choice);
  EXPECT_EQ(used.size(), 5u);
  for (const PlanLever* lever : used) {
    EXPECT_FALSE(lever->describe(job, choice).empty());
    EXPECT_FALSE(lever->code(job, choice).empty());
  }
}

}  // namespace
}  // namespace plimsoll

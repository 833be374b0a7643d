#include "cli/next_steps.h"

#include <gtest/gtest.h>

namespace plimsoll::next_steps_test {
namespace {

StepQuestion OfScript() {
  return {.script = {.run = true, .command = {"python", "train.py", "{batch}"}},
          .gpu = {.name = "L4"}};
}

TEST(AfterPlan, TheLinesThatApplyItAndHowToCheckThem) {
  const PlannedChange first{
      .levers = {"accumulation=2", "optimizer=adamw:fused"}, .batch = 16, .passes = 2};
  const std::vector<NextStep> steps = AfterPlan(OfScript(), {.first = first, .samples = 32});
  ASSERT_EQ(steps.size(), 4U);
  EXPECT_TRUE(steps[0].command.starts_with("plimsoll plan --run "));
  EXPECT_EQ(steps[1].command, "applied = plimsoll.apply(\"plan.json\", model, optimizer)");
  EXPECT_EQ(steps[1].further_lines,
            (std::vector<std::string>{"optimizer = applied.optimizer", "print(applied)"}));
  EXPECT_EQ(steps[1].purpose.find("GPU"), std::string::npos);
  EXPECT_EQ(steps[2].command, "for x, y in applied.micro_batches((x, y)):");
  EXPECT_EQ(steps[2].further_lines,
            (std::vector<std::string>{
                "    with applied.forward():", "        loss = criterion(model(x), y)",
                "    loss = applied.backward(loss)"}));
  EXPECT_NE(steps[2].purpose.find("all 32 samples"), std::string::npos);
  EXPECT_EQ(steps[3].command,
            "plimsoll predict --run --gpu L4 --batch 32 -- python train.py {batch}");
  EXPECT_NE(steps[3].purpose.find("--batch 16"), std::string::npos) << "edited by hand";
}

TEST(AfterPlan, WhatTheScriptDoesToGradientsStays) {
  PlannedChange first{.levers = {"accumulation=2"},
                      .batch = 16,
                      .passes = 2,
                      .before_step = {"train.py:57 in main"},
                      .scales = true};
  const NextStep loop = AfterPlan(OfScript(), {.first = first, .samples = 32})[2];
  EXPECT_EQ(loop.further_lines.back(), "    loss = applied.backward(loss, scaler)");
  EXPECT_NE(loop.purpose.find("What follows stays, once a step: train.py:57 in main, "),
            std::string::npos);
  first = {.levers = {"precision=amp_fp16"}, .batch = 32, .before_step = {"train.py:57 in main"}};
  const NextStep scaled = AfterPlan(OfScript(), {.first = first, .samples = 32})[2];
  EXPECT_EQ(scaled.command, "x, y = applied.place((x, y))");
  EXPECT_EQ(scaled.further_lines.back(), "applied.update(before_step=before_step)");
  EXPECT_NE(scaled.purpose.find("train.py:57 in main"), std::string::npos);
}

TEST(AfterPlan, AScriptThatAccumulatesKeepsItsLoop) {
  PlannedChange first{.levers = {"accumulation=2", "evaluation=batch/4"},
                      .batch = 16,
                      .passes = 2,
                      .own_accumulation = true};
  const std::vector<NextStep> edited = AfterPlan(OfScript(), {.first = first, .samples = 32});
  ASSERT_EQ(edited.size(), 1U) << "plimsoll.apply has nothing to set";
  EXPECT_TRUE(edited[0].command.ends_with("--batch 16 -- python train.py {batch}"));
  EXPECT_EQ(edited[0].purpose.find("32"), std::string::npos);
  first.levers.emplace_back("loss=chunked:8");
  const std::vector<NextStep> steps = AfterPlan(OfScript(), {.first = first, .samples = 32});
  ASSERT_EQ(steps.size(), 3U);
  EXPECT_NE(steps[1].purpose.find("accumulation steps are edited in the script"),
            std::string::npos);
}

TEST(AfterPlan, ACaptureIsOfBatchesThatCanBeCutIntoThePasses) {
  const PlannedChange first{.levers = {"accumulation=3"}, .batch = 16, .passes = 3};
  EXPECT_EQ(AfterPlan(OfScript(), {.first = first, .samples = 48}).back().command,
            "plimsoll predict --run --batches 6,12 --gpu L4 --batch 48 -- python train.py {batch}");
  EXPECT_EQ(AfterPlan(OfScript(), {.first = first, .samples = 96, .gpus = 2}).back().command,
            "plimsoll run -- python train.py 48");
}

TEST(AfterPlan, AWayInOnePassKeepsTheLoopAndIsCheckedWithoutAGpu) {
  const PlannedChange first{.levers = {"optimizer=adamw:fused"}, .batch = 32};
  StepQuestion asked = OfScript();
  asked.script.keep = "before.step.json.gz";
  const std::vector<NextStep> steps = AfterPlan(asked, {.first = first, .samples = 32});
  ASSERT_EQ(steps.size(), 3U);
  EXPECT_EQ(steps[2].command,
            "plimsoll predict --run --gpu L4 --batch 32 -- python train.py {batch}");
}

TEST(AfterPlan, TheAllocatorsSettingsAreNotSeenInTheEditedScript) {
  const PlannedChange first{.levers = {"allocator=expandable_segments:True"}, .batch = 32};
  EXPECT_EQ(AfterPlan(OfScript(), {.first = first, .samples = 32}).back().command,
            "plimsoll predict --run --gpu L4 --batch 32 --set allocator=expandable_segments:True "
            "-- python train.py {batch}");
}

TEST(AfterPlan, TheAllocatorsSettingsStandInFrontOfARun) {
  const PlannedChange first{.levers = {"allocator=expandable_segments:True"}, .batch = 32};
  EXPECT_EQ(
      AfterPlan(OfScript(), {.first = first, .samples = 64, .gpus = 2}).back().command,
      "PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True' plimsoll run -- python train.py 32");
}

TEST(AfterPlan, WhatWasLeftOutStaysOut) {
  const PlannedChange first{.levers = {"allocator=expandable_segments:True"}, .batch = 32};
  EXPECT_TRUE(AfterPlan(OfScript(), {.first = first, .samples = 32, .keep_numerics = true})[0]
                  .command.starts_with("plimsoll plan --run --gpu L4 --global-batch 32 "
                                       "--keep-numerics --json"));
}

TEST(AfterPredict, AScriptIsRunOnlyWithWhatIsInIt) {
  StepQuestion asked = OfScript();
  const PredictOutcome fits{.fits = true, .surely = true, .batch = 8, .samples = 8};
  EXPECT_EQ(AfterPredict(asked, fits).back().command, "plimsoll run -- python train.py 8");
  asked.levers = {"precision=amp_bf16"};
  EXPECT_EQ(AfterPredict(asked, fits).back().command.find("plimsoll run"), std::string::npos);
}

TEST(AfterPredict, AJobThatGrowsIsAskedAgain) {
  const std::vector<NextStep> steps =
      AfterPredict(OfScript(), {.fits = true, .grows = true, .batch = 8, .samples = 8});
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_EQ(steps[0].command,
            "plimsoll predict --run --gpu L4 --batch 8 -- python train.py {batch}");
}

TEST(AfterPredict, WhatIsAssumedIsAskedWithAgain) {
  StepQuestion asked = OfScript();
  asked.script.assume = {.routing = Routing{.kind = Routing::Kind::kWorst}, .mask = 0.25};
  EXPECT_EQ(AfterPredict(asked, {.fits = true, .grows = true, .batch = 8, .samples = 8})[0].command,
            "plimsoll predict --run --assume routing=worst,mask=0.25 --gpu L4 --batch 8 -- python "
            "train.py {batch}");
}

TEST(AfterPredict, WhatIsNotCertainCanBeMadeSo) {
  const std::vector<NextStep> steps =
      AfterPredict(OfScript(), {.fits = true, .batch = 8, .samples = 8});
  ASSERT_FALSE(steps.empty());
  EXPECT_EQ(steps[0].purpose, "the largest batch that fits for certain");
}

TEST(AfterPredict, RecordsAtOneBatchAreAskedForTheLongest) {
  StepQuestion asked{.files = {"a.pickle", "b.pickle", "c.pickle"},
                     .points = "4x256,4x512,4x1024",
                     .record = "c.pickle",
                     .gpu = {.name = "L4"}};
  asked.script.length = 768;
  PredictOutcome outcome{.fits = true, .surely = true, .one_batch = true, .batch = 4, .samples = 4};
  std::vector<NextStep> steps = AfterPredict(asked, outcome);
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_EQ(steps[0].command,
            "plimsoll predict a.pickle b.pickle c.pickle --points 4x256,4x512,4x1024 --gpu L4 "
            "--max-length");
  outcome.longest = true;
  steps = AfterPredict(asked, outcome);
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_EQ(steps[0].command, "plimsoll tune c.pickle --gpu L4");
}

TEST(ApplyPlan, OnlyTheAllocatorHasToBeSetBeforeTheGpuIsUsed) {
  const std::vector<NextStep> steps =
      ApplyPlan("plan.json", {.levers = {"allocator=expandable_segments:True"}, .batch = 8});
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_NE(steps[0].purpose.find("the model is on the GPU by then"), std::string::npos);
}

}  // namespace
}  // namespace plimsoll::next_steps_test

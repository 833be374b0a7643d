#include "plan/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/nightly_for_tests.h"
#include "files/input.h"
#include "job/file/step_file.h"
#include "job/lowering/job_for_tests.h"
#include "job/rules/calibration.h"
#include "job/transforms/checkpoint.h"
#include "plan/checkpoint_model.h"
#include "plan/choice_for_tests.h"
#include "plan/lever.h"
#include "plan/standings.h"

namespace plimsoll::search_test {
namespace {

using testing_job::Always;
using testing_job::Each;
using testing_job::JobMaker;
using testing_job::kMiBOfFloats;

Job ReadIt(const std::string& name) {
  return *ReadJob(*Input::Open(PLIMSOLL_TEST_DATA "/steps/" + name + ".step.json.gz"));
}

/// A request refers to it.
const Job& Gpt2() {
  static const Job job = ReadIt("gpt2_adamw_fp32");
  return job;
}

Plan Find(const PlanRequest& request) {
  Result<Plan> plan = FindPlan(request);
  EXPECT_TRUE(plan.ok()) << plan.error().ToLine();
  return *std::move(plan);
}

PlanRequest Ask(std::int64_t samples, std::optional<Bytes> limit = {}) {
  return {.job = Gpt2(),
          .gpu = *FindGpu("H200"),
          .options = {.calibration = Calibration::BuiltIn("H200"), .limit = limit},
          .samples = samples};
}
/// For a step of eight samples. A plan takes seconds, the more the less room there is, so that
/// tests share them.
const Plan& Within(int gib, bool keep_numerics = false) {
  static std::map<std::pair<int, bool>, Plan> found;
  const auto [at, missing] = found.try_emplace({gib, keep_numerics});
  if (missing) {
    PlanRequest request = Ask(8, Bytes{gib} << 30);
    request.keep_numerics = keep_numerics;
    at->second = Find(request);
  }
  return at->second;
}

/// The least of it takes as long as all others together.
std::vector<int> Rooms() {
  return IsNightly() ? std::vector{5, 9, 13, 17} : std::vector{9, 13, 17};
}

TEST(PlanTest, WhatIsShownFitsAndIsSorted) {
  for (const int gib : Rooms()) {
    const Plan& plan = Within(gib);
    ASSERT_FALSE(plan.ways.empty());
    EXPECT_FALSE(plan.closest.has_value());
    double last = 1.03 * plan.ways.front().SamplesPerSecond();
    for (const Way& way : plan.ways) {
      EXPECT_TRUE(way.SurelyFits());
      EXPECT_EQ(way.samples, 8);
      EXPECT_LE(way.SamplesPerSecond(), 1.03 * last);
      EXPECT_FALSE(LeversOf(way.choice).empty()) << "as captured it needs 14.8 GiB";
      last = way.SamplesPerSecond();
    }
  }
}

TEST(PlanTest, MoreRoomIsNeverSlower) {
  double last = 0;
  for (const int gib : Rooms()) {
    const Plan& plan = Within(gib);
    ASSERT_FALSE(plan.ways.empty()) << gib;
    // A lever that gains less than a percent is left out, and of those within 3 % the larger
    // micro-batch comes first.
    EXPECT_GE(plan.ways.front().SamplesPerSecond(), 0.96 * last) << gib;
    last = plan.ways.front().SamplesPerSecond();
  }
}

TEST(PlanTest, KeepsTheResultsWhereAskedTo) {
  for (const Way& way : Within(7, true).ways) {
    EXPECT_EQ(NumericsOf(Gpt2(), way.choice), Numerics::kSame);
  }
}

TEST(PlanTest, SaysWhatComesClosestAndWhichCardWouldDo) {
  // The golden test plan_nothing_fits does so of a GPT-2, which takes ten times as long.
  const Job job = ReadIt("vgg16_sgdm");
  const Plan plan =
      Find({.job = job,
            .gpu = *FindGpu("H200"),
            .options = {.calibration = Calibration::BuiltIn("H200"), .limit = Bytes{1} << 30},
            .samples = 8});
  EXPECT_TRUE(plan.ways.empty());
  ASSERT_TRUE(plan.closest.has_value());
  EXPECT_LT(plan.closest->trial.needs.device.high, plan.as_captured.trial.needs.device.low);
  ASSERT_TRUE(plan.smallest_card.has_value());
  EXPECT_GT(plan.smallest_card->memory, Bytes{2} << 30);
}

/// Three steps of SGD, and AdamW from a later one on. Each sample takes 8 MiB.
JobMaker OtherOptimizerLater() {
  JobMaker maker;
  const Storage weight = maker.Parameter(1000);
  const auto update = [&](std::string_view op) {
    maker.Begin(Stage::kOptimizer);
    maker.Make(op, Always(1), {{Argument::List{Arg(maker.Floats(weight, {Always(1000)}))}}});
    maker.last_call().fresh.clear();
  };
  for (int step = 0; step < 3; ++step) {
    maker.BeginStep();
    maker.Begin(Stage::kForward);
    const Storage activation = maker.Make("aten.relu.default", Each(8 * kMiBOfFloats));
    maker.Begin(Stage::kBackward);
    const Storage gradient = maker.Make("aten.mul.Tensor", Always(1000), {}, 1);
    maker.Label(Category::kGradients, gradient);
    maker.Free(activation);
    update("aten._foreach_add_.List");
    maker.Free(gradient);
  }
  maker.BeginPart({.stage = Stage::kStep});
  update("aten._foreach_lerp_.Scalar");
  update("aten._foreach_addcdiv_.ScalarList");
  return maker;
}

/// Micro-batches are those of the captured steps: what the later ones take with them is not known.
TEST(PlanTest, IsUnknownWhereWhatFitsLeavesOutAPartOfTheJob) {
  const JobMaker maker = OtherOptimizerLater();
  const auto within = [&](Bytes limit) {
    return Find(
        {.job = maker.job, .gpu = *FindGpu("H200"), .options = {.limit = limit}, .samples = 64});
  };
  EXPECT_EQ(within(Bytes{1} << 30).Verdict().decision, FitDecision::kFits);
  const Plan plan = within(Bytes{256} << 20);
  EXPECT_TRUE(plan.ways.empty());
  EXPECT_EQ(plan.Verdict().decision, FitDecision::kUnknown);
  EXPECT_FALSE(plan.smallest_card.has_value());
  EXPECT_EQ(within(Bytes{4} << 20).Verdict().decision, FitDecision::kDoesNotFit);
}

/// Every number of passes and of first blocks, against what the search finds.
TEST(PlanTest, IsTheBestOfAllThatThereIs) {
  const Plan& plan = Within(7, true);
  ASSERT_FALSE(plan.ways.empty());
  const PlanRequest request = Ask(8, Bytes{7} << 30);
  Evaluator evaluator(request);
  const std::vector<std::string> blocks = CheckpointBlocks(Gpt2(), Gpt2().variants[0]);
  double best = 0;
  for (const bool expandable : {false, true}) {
    for (const int passes : {1, 2, 4, 8}) {
      for (std::size_t count = 0; count <= blocks.size(); count += IsNightly() ? 1 : 3) {
        Choice choice{.batch = 8 / passes};
        if (expandable) choice = WithSettings(choice, {"allocator=expandable_segments:True"});
        if (passes > 1) choice = choice.With("accumulation", MicroBatchesValue(passes));
        if (count > 0) {
          choice =
              choice.With("checkpointing",
                          ModulesValue({blocks.begin(), blocks.begin() + std::ptrdiff_t(count)}));
        }
        const Result<Way> outcome = evaluator.Evaluate(choice);
        ASSERT_TRUE(outcome.ok());
        if (outcome->SurelyFits()) best = std::max(best, outcome->SamplesPerSecond());
      }
    }
  }
  // Of those within 3 % the larger micro-batch comes first.
  EXPECT_GE(plan.ways.front().SamplesPerSecond(), 0.96 * best);
}

TEST(PlanTest, TheLossInChunksTakesTheLogitsAway) {
  const PlanRequest request = Ask(8);
  Evaluator evaluator(request);
  const Result<Way> plain = evaluator.Evaluate({.batch = 8});
  const Result<Way> chunked = evaluator.Evaluate(WithSettings({.batch = 8}, {"loss=chunked:8"}));
  ASSERT_TRUE(plain.ok() && chunked.ok());
  // Of 8 samples of 1,024 tokens; the backward had two of them beside the logarithms.
  const Bytes logits = Bytes{8} * 1024 * 50257 * 4;
  EXPECT_LT(chunked->trial.needs.reserved.best, plain->trial.needs.reserved.best - 2 * logits);
  EXPECT_NEAR(chunked->trial.step_us, plain->trial.step_us, 0.02 * plain->trial.step_us);
  EXPECT_EQ(NumericsOf(Gpt2(), chunked->choice), Numerics::kRounding);
}

TEST(PlanLevers, NoLogitsNoChunks) {
  const Job job = ReadIt("vgg16_sgdm");
  const PlanRequest request{.job = job, .gpu = *FindGpu("H200"), .options = {}, .samples = 8};
  for (const PlanLever* lever : Levers()) {
    if (lever->name != "loss") continue;
    EXPECT_TRUE(lever->worth_trying(request, job.variants.front()).empty());
  }
}

TEST(PlanTest, AStepOfSeveralBatchesTakesSoManySamples) {
  Job job = ReadIt("gpt2_adamw_fp32");
  for (Variant& variant : job.variants) variant.passes = 2;
  PlanRequest request{.job = job,
                      .gpu = *FindGpu("H200"),
                      .options = {.calibration = Calibration::BuiltIn("H200")},
                      .samples = 8};
  const Plan plan = Find(request);
  EXPECT_EQ(plan.as_captured.choice.batch, 4);
  EXPECT_EQ(plan.as_captured.samples, 8);
  // Here the two micro-batches are one backward, which nothing can take apart.
  request.samples = 7;
  const Result<Plan> odd = FindPlan(request);
  ASSERT_FALSE(odd.ok());
  EXPECT_NE(odd.error().ToLine().find("multiple of 2"), std::string::npos);
}

TEST(PlanTest, EveryLeverCanBeTold) {
  const Choice choice = WithSettings(
      {.batch = 4},
      {"tf32=on", "allocator=expandable_segments:True", "optimizer=adamw:fused", "accumulation=2",
       "checkpointing=transformer.h.0", "parallel=fsdp:4", "precision=amp_bf16",
       "offload=activations", "loss=chunked:4", "evaluation=no_grad+host+batch/2"});
  EXPECT_EQ(SamplesOf(Gpt2(), choice), 32);
  const std::vector<LeverSetting> used = LeversOf(choice);
  EXPECT_EQ(used.size(), Levers().size());
  for (const auto& [lever, value] : used) {
    EXPECT_FALSE(lever->describe(Gpt2(), choice, *value).empty());
    EXPECT_FALSE(lever->fields(Gpt2(), *value).empty());
    EXPECT_FALSE(lever->code(Gpt2(), choice, *value).empty());
  }
}

TEST(PlanTest, WhatIsNotOfThisJobIsRefused) {
  for (const char* setting : {"checkpointing=h.99", "checkpointing=transformer.h.0,transformer",
                              "parallel=pipeline:1000:16", "parallel=fsdp:4:fp16"}) {
    Job job = CopyOf(Gpt2(), 0);
    EXPECT_TRUE(Rewrite(job, WithSettings({}, {setting})).has_value()) << setting;
  }
}

TEST(Plan, MoreGpusThanThereCanBeAreRefused) {
  const Job job = ReadIt("vgg16_sgdm");
  const PlanRequest request{
      .job = job, .gpu = *FindGpu("H200"), .options = {}, .samples = 1 << 22, .gpus = 1 << 22};
  EXPECT_FALSE(FindPlan(request).ok());
}

/// Its logits: a loss in chunks has none.
TEST(PlanTest, NoConfigurationEndsALeak) {
  const Job job = *ReadJob(*Input::Open(PLIMSOLL_TEST_DATA "/lives/leak.step.json.gz"));
  const Plan plan = Find({.job = job, .gpu = *FindGpu("RTX 4090"), .options = {}, .samples = 64});
  EXPECT_FALSE(plan.Lasts());
  ASSERT_FALSE(plan.ways.empty());
  for (const Way& way : plan.ways) {
    ASSERT_TRUE(way.leak.has_value());
    EXPECT_EQ(way.leak->steps, 6);
  }
  EXPECT_EQ(plan.refused.back(),
            "the loss cannot be computed in chunks: the script keeps its logits");
}

TEST(PlanTest, SaysWhatEachLeverIsWorth) {
  const Plan& plan = Within(9);
  ASSERT_FALSE(plan.ways.empty());
  const Way& best = plan.ways.front();
  EXPECT_EQ(plan.worth.size(), LeversOf(best.choice).size());
  for (const LeverWorth& worth : plan.worth) {
    EXPECT_FALSE(worth.without.choice.Sets(worth.lever->name));
    EXPECT_EQ(SetBy(worth.alone.choice), BitOf(*worth.lever));
    EXPECT_EQ(worth.alone.samples, 8);
    EXPECT_EQ(worth.without.samples, 8);
    // Otherwise the way without it would have been found.
    if (worth.without.SurelyFits()) {
      EXPECT_GE(worth.without.trial.step_us, 0.97 * best.trial.step_us);
    }
  }
  for (const Way& single : plan.single) {
    EXPECT_EQ(LeversOf(single.choice).size(), 1u);
    EXPECT_TRUE(single.SurelyFits());
    EXPECT_GE(single.trial.step_us, best.trial.step_us);
  }
}

TEST(PlanTest, NothingOnTheFrontierIsBeaten) {
  const Plan& plan = Within(9);
  ASSERT_FALSE(plan.frontier.empty());
  for (std::size_t i = 1; i < plan.frontier.size(); ++i) {
    EXPECT_LT(plan.frontier[i - 1].trial.needs.device.best,
              plan.frontier[i].trial.needs.device.best);
    EXPECT_GE(plan.frontier[i - 1].trial.step_us, plan.frontier[i].trial.step_us);
  }
}

/// On several GPUs, where what NCCL takes counts too.
TEST(Plan, OneWayHasOneFigureAndTheFirstIsTheFastest) {
  const Job job = ReadIt("vgg16_sgdm");
  const PlanRequest request{
      .job = job, .gpu = *FindGpu("RTX3060"), .options = {}, .samples = 128, .gpus = 4};
  const Result<Plan> plan = FindPlan(request);
  ASSERT_TRUE(plan.ok() && !plan->ways.empty());
  std::vector<Way> shown = plan->ways;
  for (const auto& more : {plan->single, plan->frontier}) {
    shown.insert(shown.end(), more.begin(), more.end());
  }
  for (const LeverWorth& worth : plan->worth)
    shown.insert(shown.end(), {worth.alone, worth.without});
  const Bytes outside =
      plan->ways.front().trial.needs.device.best - plan->ways.front().trial.needs.reserved.best;
  EXPECT_GT(outside, request.gpu.context.bytes) << "NCCL";
  for (const Way& way : shown) {
    const Needs& needs = way.trial.needs;
    EXPECT_EQ(needs.device.best - needs.reserved.best, outside);
    EXPECT_TRUE(!way.SurelyFits() ||
                way.MicrosecondsPerSample() >= 0.97 * plan->ways.front().MicrosecondsPerSample());
  }
}

/// plimsoll.apply replaces the layer that makes the logits: a plan does not checkpoint it too.
TEST(PlanTest, WhatMakesTheLogitsIsNotCheckpointedBesideAChunkedLoss) {
  Job job = CopyOf(Gpt2(), 0);
  const Choice both = WithSettings({.batch = 4}, {"loss=chunked:8", "checkpointing=lm_head"});
  EXPECT_EQ(NotCheckpointed(job, job.variants[0], both), std::vector<std::string>{"lm_head"});
  const CheckpointModel model =
      ModelCheckpointing(job, job.variants[0], *FindGpu("H200"), {.batch = 4},
                         {.apart = NotCheckpointed(job, job.variants[0], both)});
  for (const CheckpointBlock& block : model.blocks) EXPECT_NE(block.module, "lm_head");
}

}  // namespace
}  // namespace plimsoll::search_test

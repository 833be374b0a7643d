// A script's own accumulation as a change: a captured step of several micro-batches, split anew.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/nightly_for_tests.h"
#include "files/input.h"
#include "job/file/step_file.h"
#include "job/trial/trial.h"
#include "plan/choice_for_tests.h"
#include "plan/family.h"
#include "plan/lever.h"
#include "plan/search.h"

namespace plimsoll::accumulation_test {
namespace {

Job Captured(int micro_batches) {
  return *ReadJob(*Input::Open(PLIMSOLL_TEST_DATA "/accumulation/by_" +
                               std::to_string(micro_batches) + ".step.json.gz"));
}

TrialResult TrialOf(const Job& job, std::int64_t batch) {
  const PredictOptions options{.batch = batch};
  const Result<Setting> setting = MakeSetting(job, *FindGpu("H200"), options);
  EXPECT_TRUE(setting.ok());
  return Trial::Of(*setting)->WithRanges();
}

/// `from` micro-batches made `to`, beside a capture of `to`.
void ExpectSame(int from, int to) {
  Job made = Captured(from);
  const std::optional<Error> error =
      Rewrite(made, WithSettings({}, {"accumulation=" + std::to_string(to)}));
  ASSERT_EQ(error, std::nullopt) << error->ToLine();
  EXPECT_EQ(made.variants[0].passes, to);
  for (const std::int64_t batch : {2, 7, 32}) {
    const TrialResult is = TrialOf(made, batch);
    const TrialResult wanted = TrialOf(Captured(to), batch);
    EXPECT_EQ(is.needs.allocated.best, wanted.needs.allocated.best) << from << " to " << to;
    EXPECT_EQ(is.needs.reserved.best, wanted.needs.reserved.best) << from << " to " << to;
    // A loss that is divided by the number of micro-batches still is, by 1.
    EXPECT_NEAR(is.step_us, wanted.step_us, 0.03 * wanted.step_us) << from << " to " << to;
  }
}

TEST(Accumulation, TheScriptsOwnIsLeftOutOrRepeated) {
  for (const auto& [from, to] : {std::pair{4, 1}, {4, 2}, {4, 6}, {2, 1}, {2, 4}, {6, 4}, {6, 1}}) {
    ExpectSame(from, to);
  }
}

PlanRequest Ask(const Job& job, std::int64_t samples, Bytes limit) {
  return {.job = job, .gpu = *FindGpu("H200"), .options = {.limit = limit}, .samples = samples};
}

TEST(Accumulation, APlanSplitsTheSamplesOfAScriptThatAccumulates) {
  const Job job = Captured(4);
  const Bytes all = TrialOf(job, 16).needs.reserved.high;
  const PlanRequest request = Ask(job, 64, all / 2);
  EXPECT_EQ(StartOf(request).batch, 16);
  EXPECT_EQ(SamplesOf(job, StartOf(request)), 64);
  const Result<Plan> plan = FindPlan(request);
  ASSERT_TRUE(plan.ok()) << plan.error().ToLine();
  ASSERT_FALSE(plan->ways.empty());
  const auto& ways = plan->ways;
  EXPECT_TRUE(std::ranges::any_of(
      ways, [&](const Way& way) { return MicroBatchesOf(job, way.choice) > 4; }));
  for (const Way& way : ways) EXPECT_EQ(SamplesOf(job, way.choice), 64);
}

/// Other changes are offered with other numbers of micro-batches.
TEST(Accumulation, AReasonWhyItStaysAsItIsNamesTheChangeBesideIt) {
  const Job job = Captured(4);
  const Result<Plan> plan = FindPlan(Ask(job, 64, TrialOf(job, 16).needs.reserved.high / 2));
  ASSERT_TRUE(plan.ok()) << plan.error().ToLine();
  const auto about = [](const std::string& reason) {
    return reason.find("the script's accumulation stays as it is") != std::string::npos;
  };
  ASSERT_TRUE(std::ranges::any_of(plan->refused, about));
  for (const std::string& reason : plan->refused) {
    EXPECT_TRUE(!about(reason) || reason.starts_with("with activations on the host, ")) << reason;
  }
}

TEST(Accumulation, SamplesNeedNotBeAMultipleOfTheScriptsOwnMicroBatches) {
  const Job job = Captured(4);
  const Result<Plan> plan = FindPlan(Ask(job, 6, Bytes{64} << 30));
  ASSERT_TRUE(plan.ok()) << plan.error().ToLine();
  EXPECT_EQ(plan->ways.front().samples, 6);
}

/// 60 has twelve divisors.
TEST(Accumulation, AMicroBatchOfOneIsEvaluatedBeforeNothingFits) {
  const Job job = Captured(1);
  const Bytes of_one = TrialOf(job, 1).needs.reserved.high;
  Job two = Captured(1);
  ASSERT_EQ(Rewrite(two, WithSettings({}, {"accumulation=2"})), std::nullopt);
  const Bytes limit = std::max(of_one, TrialOf(two, 1).needs.reserved.high) + (Bytes{4} << 20);
  const Result<Plan> plan = FindPlan(Ask(job, 60, limit));
  ASSERT_TRUE(plan.ok()) << plan.error().ToLine();
  EXPECT_FALSE(plan->ways.empty());
}

/// Micro-batches are cut from the batches of the loader that trains: that of the evaluation stays.
TEST(Accumulation, AnEvaluationKeepsTheBatchOfTheWholeStep) {
  const Job captured = *ReadJob(*Input::Open(PLIMSOLL_TEST_DATA "/lives/eval_grad.step.json.gz"));
  Job job = *ReadJob(*Input::Open(PLIMSOLL_TEST_DATA "/lives/eval_grad.step.json.gz"));
  const Choice choice = WithSettings({.batch = 2}, {"accumulation=4", "evaluation=batch/2"});
  ASSERT_FALSE(Rewrite(job, choice).has_value());
  int evaluations = 0;
  for (const Part& part : job.variants.front().later) {
    const bool evaluates = part.stage == Stage::kEvaluation;
    EXPECT_EQ(part.of_whole_step, evaluates);
    evaluations += evaluates ? 1 : 0;
  }
  EXPECT_GT(evaluations, 0);
  EXPECT_EQ(kAccumulationLever.code(captured, choice, *choice.Find("accumulation")).back(),
            "# the loader of training alone: the evaluation keeps 8 a batch");
}

TEST(Accumulation, AnEvaluationOfManySamplesIsInSmallPartsToo) {
  const Job job = *ReadJob(*Input::Open(PLIMSOLL_TEST_DATA "/lives/eval_grad.step.json.gz"));
  const Result<Plan> plan = FindPlan(Ask(job, 512, Bytes{10} << 30));
  ASSERT_TRUE(plan.ok()) << plan.error().ToLine();
  ASSERT_FALSE(plan->ways.empty());
  EXPECT_LE(plan->ways.front().trial.needs.reserved.high, Bytes{10} << 30);
}

}  // namespace
}  // namespace plimsoll::accumulation_test

// The search over a long step: every combination of changes is looked through, within a bound of
// work that is counted in simulated requests.
#include <gtest/gtest.h>

#include "job/lowering/job_for_tests.h"
#include "plan/search.h"

namespace plimsoll::long_step_test {
namespace {

using testing_job::Always;
using testing_job::Each;
using testing_job::JobMaker;

constexpr int kCallsOfALayer = 6;
constexpr int kSteps = 3;

/// Layers of three results each; the backward makes a gradient for each of these.
void AddStep(JobMaker& maker, int layers, bool first, std::vector<Storage>& gradients) {
  maker.BeginStep();
  maker.Begin(Stage::kTransfer);
  const Storage batch = maker.Make("aten.randn.default", Each(4096));
  maker.Label(Category::kInputs, batch);
  maker.Begin(Stage::kForward);
  std::vector<Storage> kept;
  for (int layer = 0; layer < layers; ++layer) {
    for (int i = 0; i < kCallsOfALayer / 2; ++i) {
      kept.push_back(maker.Make("aten.relu.default", Each(65536)));
      maker.last_call().module = maker.job.strings.Intern("layers." + std::to_string(layer));
    }
  }
  for (const Storage gradient : gradients) maker.Free(gradient);
  gradients.clear();
  maker.Begin(Stage::kBackward);
  for (std::size_t i = kept.size(); i-- > 0;) {
    const Storage gradient = maker.Make("aten.threshold_backward.default", Each(65536), {}, 1);
    maker.Free(kept[i]);
    maker.Free(gradient);
  }
  gradients.push_back(maker.Make("aten.mul.Tensor", Always(1 << 20), {}, 1));
  maker.Label(Category::kGradients, gradients.back());
  maker.Free(batch);
  maker.Begin(Stage::kOptimizer);
  if (first) {
    const Storage state = maker.Make("aten.zeros_like.default", Always(1 << 21));
    maker.Label(Category::kOptimizerState, state);
  }
}

JobMaker LongJob(int calls) {
  JobMaker maker;
  maker.Parameter(1 << 20);
  std::vector<Storage> gradients;
  for (int step = 0; step < kSteps; ++step) {
    AddStep(maker, calls / kSteps / kCallsOfALayer, step == 0, gradients);
  }
  // The same in another precision, so that there are as many combinations as of a real job.
  const Variant first = maker.variant();
  for (const char* precision : {"amp_bf16", "bf16"}) {
    maker.job.variants.push_back(first);
    maker.job.variants.back().precision = precision;
  }
  return maker;
}

TEST(LongStep, EveryCombinationIsLookedThrough) {
  const JobMaker maker = LongJob(20'000);
  for (const std::int64_t gpus : {1, 4}) {
    const PlanRequest request{.job = maker.job,
                              .gpu = *FindGpu("RTX 4090"),
                              .options = {.limit = Bytes{4} << 30},
                              .samples = 16 * gpus,
                              .gpus = gpus};
    const Result<Plan> plan = FindPlan(request);
    ASSERT_TRUE(plan.ok()) << plan.error().ToLine();
    EXPECT_EQ(plan->left_out, 0u) << "of " << plan->combinations;
    EXPECT_GE(plan->combinations, 4u);
    EXPECT_LT(plan->work, 300'000'000) << plan->combinations << " on " << gpus;
  }
}

TEST(LongStep, TimeThatIsOverEndsTheSearchAndSaysSo) {
  const JobMaker maker = LongJob(20'000);
  const PlanRequest request{.job = maker.job,
                            .gpu = *FindGpu("RTX 4090"),
                            .options = {.limit = Bytes{4} << 30},
                            .samples = 16,
                            .out_of_time = [] { return true; }};
  const Result<Plan> plan = FindPlan(request);
  ASSERT_TRUE(plan.ok()) << plan.error().ToLine();
  EXPECT_TRUE(plan->out_of_time);
  EXPECT_GT(plan->left_out, 0u);
}

}  // namespace
}  // namespace plimsoll::long_step_test

#include "job/lowering/lower.h"

#include <gtest/gtest.h>

#include <optional>

#include "job/lowering/job_for_tests.h"
#include "job/rules/calibration.h"
#include "job/rules/testing.h"

namespace plimsoll::lower_test {
namespace {

using testing_job::AddConvolution;
using testing_job::Always;
using testing_job::Each;
using testing_job::JobMaker;
using testing_job::RequestsOf;
using testing_job::TrainingLoop;

Lowered LowerIt(const JobMaker& maker, const LowerOptions& options = {.batch = 2}) {
  return Lower(maker.job, maker.job.variants.front(), *FindGpu("H200"), options);
}

/// The blocks that nobody has given back at the end, by category.
std::map<Category, std::vector<Bytes>> LeftOver(const Lowered& lowered) {
  std::vector<int> uses(lowered.blocks.size(), 0);
  for (const Request& r : lowered.workload.requests) {
    uses[r.allocation] += r.kind == Request::Kind::kAllocate ? 1 : -1;
  }
  std::map<Category, std::vector<Bytes>> left;
  for (std::size_t b = 0; b < uses.size(); ++b) {
    if (uses[b] == 1) left[lowered.blocks[b].category].push_back(lowered.blocks[b].requested);
  }
  return left;
}

TEST(Lower, AsksForResultsAndGivesThemBackWhenTheyDie) {
  JobMaker maker;
  maker.Parameter(25);
  maker.BeginStep();
  maker.Begin(Stage::kForward);
  const Storage a = maker.Make("aten.relu.default", Each(10));
  maker.Make("aten.relu.default", Always(3));
  maker.Free(a);
  EXPECT_EQ(RequestsOf(LowerIt(maker, {.batch = 2, .steps = 1})), "+100 +80 +12 -80");
  EXPECT_EQ(RequestsOf(LowerIt(maker, {.batch = 7, .steps = 1})), "+100 +280 +12 -280");
}

/// Every second step generates first what both train with, by operators like those of the step: the
/// gradient that goes is still the one of the step before.
TEST(Lower, AStepThatDoesMoreFirstLetsGoOfTheGradientOfTheOneBefore) {
  JobMaker maker;
  std::optional<Storage> gradient;
  for (const bool generates : {true, false, true}) {
    maker.BeginStep();
    if (generates) maker.Free(maker.Make("aten.relu.default", Always(7)));
    if (gradient) maker.Free(*gradient);
    gradient = maker.Make("aten.relu.default", Always(7));
  }
  const std::string third = " +28 -28 -28 +28";
  EXPECT_EQ(RequestsOf(LowerIt(maker, {.steps = 5})),
            "+28 -28 +28 -28 +28" + third + third + third);
}

/// A loop with zero_grad at its top, left by a loader that had no more: the last step's gradient
/// stays, and goes when another step comes.
TEST(Lower, WhatTheLastStepDidNotLetGoGoesBeforeTheNext) {
  JobMaker maker;
  for (int step = 0; step < 3; ++step) {
    maker.BeginStep();
    const Storage gradient = maker.Make("aten.relu.default", Always(5));
    if (step < 2) maker.Free(gradient);
  }
  EXPECT_EQ(RequestsOf(LowerIt(maker, {.steps = 3})), "+20 -20 +20 -20 +20");
  EXPECT_EQ(RequestsOf(LowerIt(maker, {.steps = 5})), "+20 -20 +20 -20 +20 -20 +20 -20 +20");
}

/// Under torch.backends.cudnn.benchmark: once for a shape, whatever comes later.
/// A list of the last two losses: the third step lets go of the first one's, and so on.
TEST(Lower, WhatIsKeptForTwoStepsGoesInEachThatComesLater) {
  JobMaker maker;
  std::vector<Storage> losses;
  for (int step = 0; step < 3; ++step) {
    maker.BeginStep();
    losses.push_back(maker.Make("aten.relu.default", Always(5)));
    if (step == 0) maker.Make("aten.zeros.default", Always(7));
    if (step == 2) maker.Free(losses.front());
  }
  EXPECT_EQ(RequestsOf(LowerIt(maker, {.steps = 3})), "+20 +28 +20 +20 -20");
  EXPECT_EQ(RequestsOf(LowerIt(maker, {.steps = 5})), "+20 +28 +20 +20 -20 +20 -20 +20 -20");
}

TEST(Lower, TheFastestConvolutionIsSearchedForOnce) {
  JobMaker maker;
  const std::string key = "float32 nchw 64,56,56 64,3,3 1,1 1,1 1,1 1";
  const auto text = std::make_shared<const std::string>(key + "\t0\t1:100 2:200\t\t");
  AskedWorkspaces asked{.gpu = "H200", .cudnn = "9.19.0"};
  asked.table = asked.timed = asked.searched = WorkspaceTable(text, {{1, 2}});
  for (WorkspaceTable* table : {&asked.table, &asked.timed, &asked.searched}) {
    ASSERT_TRUE(table->Add(*text));
  }
  maker.job.asked = std::make_shared<const AskedWorkspaces>(std::move(asked));
  for (int step = 0; step < 2; ++step) {
    maker.BeginStep();
    testing_job::AddConvolution(maker);
  }
  const Lowered lowered = LowerIt(maker, {.batch = 2, .steps = 2});
  EXPECT_TRUE(lowered.searches);
  EXPECT_EQ(std::ranges::count(lowered.workload.requests, Request::Kind::kSearch, &Request::kind),
            1);
  EXPECT_EQ(std::ranges::count(lowered.workload.requests, Request::Kind::kBorrow, &Request::kind),
            2);
}

TEST(Lower, NothingIsAskedForEmptyTensorsAndDoubleFreesAreNone) {
  JobMaker maker;
  maker.BeginStep();
  const Storage nothing = maker.Make("aten.relu.default", Always(0));
  const Storage a = maker.Make("aten.relu.default", Always(1));
  maker.Free(nothing);
  maker.Free(a);
  maker.Free(a);
  EXPECT_EQ(RequestsOf(LowerIt(maker, {.steps = 1})), "+4 -4");
}

TEST(Lower, ATiedParameterIsThereOnce) {
  JobMaker maker;
  maker.Parameter(25);
  maker.variant().model_tensors.push_back(maker.variant().model_tensors.front());
  maker.variant().events.push_back({.kind = JobEvent::Kind::kModelTensor, .index = 1});
  EXPECT_EQ(RequestsOf(LowerIt(maker)), "+100");
}

TEST(Lower, MomentsAndPurposesFollowThePhases) {
  const Lowered lowered = LowerIt(TrainingLoop(), {.batch = 2, .steps = 1});
  std::vector<std::pair<Stage, Category>> seen;
  for (std::size_t i = 0; i < lowered.workload.requests.size(); ++i) {
    const Request& r = lowered.workload.requests[i];
    if (r.kind != Request::Kind::kAllocate) continue;
    seen.emplace_back(lowered.moments[i].stage, lowered.blocks[r.allocation].category);
  }
  const std::vector<std::pair<Stage, Category>> expected = {
      {Stage::kBuild, Category::kParameters},         {Stage::kTransfer, Category::kInputs},
      {Stage::kForward, Category::kActivations},      {Stage::kBackward, Category::kGradients},
      {Stage::kOptimizer, Category::kOptimizerState}, {Stage::kOptimizer, Category::kTemporaries}};
  EXPECT_EQ(seen, expected);
  EXPECT_EQ(lowered.moments.front().step, -1) << "the model is there before the first step";
  EXPECT_EQ(lowered.moments.back().step, 0);
}

/// The third captured step again and again: each batch lives until the next one is there, gradients
/// are made anew, and the state of the optimizer stays what the first step made.
TEST(Lower, LaterStepsRepeatTheThirdOnItsOwnStorages) {
  const JobMaker maker = TrainingLoop();
  for (const int steps : {3, 4, 5, 9}) {
    auto left = LeftOver(LowerIt(maker, {.batch = 2, .steps = steps}));
    EXPECT_EQ(left[Category::kInputs], std::vector<Bytes>{800}) << steps;
    EXPECT_EQ(left[Category::kGradients], std::vector<Bytes>{4000}) << steps;
    EXPECT_EQ(left[Category::kOptimizerState], std::vector<Bytes>{8000}) << steps;
    EXPECT_TRUE(left[Category::kActivations].empty()) << steps;
    EXPECT_TRUE(left[Category::kTemporaries].empty()) << steps;
  }
  const std::string third = " +800 -800 +4000 -4000 +4000 -4000 +4004 -4004";
  const std::string five = RequestsOf(LowerIt(maker, {.batch = 2, .steps = 5}));
  EXPECT_TRUE(five.ends_with(third + third + third)) << five;
}

TEST(Lower, FewerStepsThanCapturedAreOnlyThose) {
  const JobMaker maker = TrainingLoop();
  const Lowered one = LowerIt(maker, {.batch = 2, .steps = 1});
  EXPECT_EQ(one.moments.back().step, 0);
  EXPECT_LT(one.workload.requests.size(),
            LowerIt(maker, {.batch = 2, .steps = 2}).workload.requests.size());
}

TEST(Lower, ASingleCapturedStepIsNotRepeated) {
  JobMaker maker;
  maker.BeginStep();
  maker.Make("aten.relu.default", Always(1));
  EXPECT_EQ(RequestsOf(LowerIt(maker, {.steps = 5})), "+4");
}

/// The sum of two gradients is written into the older one, whose block lives until both are dead.
class InPlace : public testing::Test {
 protected:
  InPlace() {
    maker_.BeginStep();
    maker_.Begin(Stage::kBackward);
    older_ = maker_.Make("aten.mul.Tensor", Always(100));
    const TensorUse older = maker_.last_call().results[0];
    newer_ = maker_.Make("aten.mul.Tensor", Always(100));
    const TensorUse newer = maker_.last_call().results[0];
    sum_ = maker_.Make("aten.add.Tensor", Always(100), {Arg(older), Arg(newer)});
  }
  JobMaker maker_;
  Storage older_ = 0, newer_ = 0, sum_ = 0;
};

TEST_F(InPlace, TheBlockIsKeptUntilBothStoragesAreDead) {
  maker_.Free(older_);
  maker_.Make("aten.relu.default", Always(1));
  maker_.Free(sum_);
  EXPECT_EQ(RequestsOf(LowerIt(maker_, {.steps = 1})), "+400 +400 +4 -400");
}

TEST_F(InPlace, WhicheverDiesFirst) {
  maker_.Free(sum_);
  maker_.Free(older_);
  maker_.Make("aten.relu.default", Always(1));
  EXPECT_EQ(RequestsOf(LowerIt(maker_, {.steps = 1})), "+400 +400 -400 +4");
}

TEST_F(InPlace, NotIntoWhatIsStillNeeded) {
  maker_.Make("aten.relu.default", Always(1));
  maker_.Make("aten.relu.default", Always(1));
  maker_.Free(older_);
  EXPECT_EQ(RequestsOf(LowerIt(maker_, {.steps = 1})), "+400 +400 +400 +4 +4 -400");
}

TEST(Lower, ALibrarysWorkspaceIsKeptOncePerThread) {
  JobMaker maker;
  for (int i = 0; i < 3; ++i) {
    maker.BeginStep();
    for (const int thread : {0, 1, 1, 0}) {
      maker.Free(maker.Make("aten.mm.default", Always(1), {}, thread));
    }
  }
  const Bytes workspace = FindGpu("H200")->cublas_workspace;
  const auto left = LeftOver(LowerIt(maker, {.steps = 5, .torch = {2, 13}}));
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left.at(Category::kWorkspaces), (std::vector<Bytes>{workspace, workspace}));
}

TEST(Lower, UnknownOperatorsAreCountedByNameInOneStep) {
  JobMaker maker;
  for (int i = 0; i < 3; ++i) {
    maker.BeginStep();
    maker.Free(maker.Make("mylib.fancy.default", Always(1)));
    maker.Free(maker.Make("mylib.fancy.default", Always(1)));
    maker.Free(maker.Make("aten.cholesky.default", Always(1)));
    maker.Free(maker.Make("aten.relu.default", Always(1)));
  }
  const Lowered lowered = LowerIt(maker, {.steps = 5});
  const std::map<std::string, int, std::less<>> expected = {{"aten.cholesky.default", 1},
                                                            {"mylib.fancy.default", 2}};
  EXPECT_EQ(lowered.unknown, expected);
}

/// Attention holds things for its output. Held are: under negative names what goes before the
/// output, under others what goes after it.
class Held : public testing::Test {
 protected:
  /// In bf16 on an H200, with a gradient to come: cuDNN's kernel.
  Storage Attention(JobMaker& maker) {
    const std::vector<Number> sizes = {Each(1), Always(4), Always(64), Always(64)};
    const auto tensor = [&](Storage storage) {
      const std::uint32_t layout = maker.AddLayout(sizes, DType::kBFloat16);
      return TensorUse{.storage = storage, .layout = layout, .needs_grad = true};
    };
    const TensorUse input = tensor(maker.variant().storages++);
    const Storage output =
        maker.Make("plimsoll.attention", sizes, {Arg(input), Arg(input), Arg(input)});
    CallRecord& call = maker.last_call();
    call.results[0] = tensor(output);
    call.fresh[0].bytes = {2 * 2 * 4 * 64 * 64, 3 * 2 * 4 * 64 * 64};
    return output;
  }
};

TEST_F(Held, GoesInOrderWithTheStorageAndOnlyOnce) {
  JobMaker maker;
  maker.BeginStep();
  maker.Begin(Stage::kForward);
  const Storage output = Attention(maker);
  const std::string made = RequestsOf(LowerIt(maker, {.steps = 1, .torch = {2, 11}}));
  maker.Free(output);
  maker.Free(output);
  const std::string freed = RequestsOf(LowerIt(maker, {.steps = 1, .torch = {2, 11}}));
  ASSERT_TRUE(freed.starts_with(made));
  // The logsumexp (4 bytes for each of 4 · 64 rows) goes first, then the output, then the state of
  // the random numbers.
  EXPECT_EQ(freed.substr(made.size()), " -1024 -32768 -8 -8") << made;
}

TEST_F(Held, MovesOnWithItsStorageFromStepToStep) {
  JobMaker maker;
  Storage before = 0;
  for (int i = 0; i < 3; ++i) {
    maker.BeginStep();
    maker.Begin(Stage::kForward);
    const Storage output = Attention(maker);
    if (before != 0) maker.Free(before);
    before = output;
  }
  const auto three = LeftOver(LowerIt(maker, {.steps = 3, .torch = {2, 11}}));
  const auto eight = LeftOver(LowerIt(maker, {.steps = 8, .torch = {2, 11}}));
  EXPECT_EQ(three.at(Category::kActivations).size(), 4u);
  EXPECT_EQ(three, eight);
}

/// A convolution's workspace is borrowed: its own estimate, or the upper one.
TEST(Lower, WorkspacesOfConvolutionsAreBorrowed) {
  JobMaker maker;
  maker.BeginStep();
  AddConvolution(maker);
  const auto borrowed = [&](Estimate estimate) {
    const Lowered lowered = LowerIt(maker, {.batch = 8, .steps = 1, .estimate = estimate});
    Bytes sum = 0;
    for (const Request& r : lowered.workload.requests) {
      if (r.kind == Request::Kind::kBorrow) sum += r.size;
    }
    return sum;
  };
  EXPECT_GT(borrowed(Estimate::kUpper), 0);
  EXPECT_GE(borrowed(Estimate::kUpper), borrowed(Estimate::kLikely));
}

TEST(Lower, WhatWasMeasuredGoesBeforeWhatWasAskedAndThatBeforeTheRules) {
  JobMaker maker;
  maker.BeginStep();
  AddConvolution(maker);
  const auto borrowed = [&](const char* gpu, const Calibration* calibration) {
    Bytes sum = 0;
    const Lowered lowered = Lower(maker.job, maker.job.variants.front(), *FindGpu(gpu),
                                  {.batch = 2, .steps = 1, .calibration = calibration});
    for (const Request& r : lowered.workload.requests) {
      if (r.kind == Request::Kind::kBorrow) sum += r.size;
    }
    return sum;
  };
  const Bytes by_rule = borrowed("H200", nullptr);
  const Bytes elsewhere = borrowed("RTX 4090", nullptr);
  const auto text = std::make_shared<const std::string>(
      "float32 nchw 64,56,56 64,3,3 1,1 1,1 1,1 1\t0\t1:12345 2:23456\t\t");
  AskedWorkspaces asked{.gpu = "H200", .cudnn = "9.19.0", .table = {text, {{1, 2}}}};
  ASSERT_TRUE(asked.table.Add(*text));
  maker.job.asked = std::make_shared<const AskedWorkspaces>(std::move(asked));
  ASSERT_NE(by_rule, 23456);
  EXPECT_EQ(borrowed("H200", nullptr), 23456);
  EXPECT_EQ(borrowed("RTX 4090", nullptr), elsewhere);
  const std::shared_ptr<const Calibration> measured = Calibration::BuiltIn("H200");
  EXPECT_NE(borrowed("H200", measured.get()), 23456) << "is in the built-in table";
}

TEST(Lower, AbsurdSizesEndWhereAddressesDo) {
  JobMaker maker;
  maker.BeginStep();
  for (int i = 0; i < 1000; ++i) maker.Make("aten.relu.default", Each(std::int64_t{1} << 48));
  const Lowered lowered = LowerIt(maker, {.batch = 1 << 24, .steps = 1});
  Bytes sum = 0;
  for (const LoweredBlock& block : lowered.blocks) {
    EXPECT_GT(block.requested, 0);
    ASSERT_FALSE(__builtin_add_overflow(sum, block.requested, &sum));
  }
  EXPECT_LE(sum, (Bytes{1} << 60) + 1000);
}

/// An evaluation behind the steps: each batch makes a result that is kept, and what makes it goes.
JobMaker WithEvaluation(std::int64_t batches) {
  JobMaker maker;
  maker.Parameter(25);
  maker.BeginStep();
  maker.Free(maker.Make("aten.relu.default", Each(10)));
  std::vector<Storage> kept;
  for (int i = 0; i < 3; ++i) {
    maker.BeginPart({.times = Always(i == 2 ? batches - 2 : 1)});
    const Storage inside = maker.Make("aten.relu.default", Each(4));
    kept.push_back(maker.Make("aten.relu.default", Each(1)));
    maker.Free(inside);
  }
  maker.BeginPart({.batches = Always(batches), .seen = 3});
  maker.Make("aten.cat.default", Each(3));
  for (const Storage storage : kept) maker.Free(storage);
  return maker;
}

TEST(Lower, WhatComesAfterTheStepsIsRunOnce) {
  EXPECT_EQ(RequestsOf(LowerIt(WithEvaluation(3), {.batch = 2, .steps = 1})),
            "+100 +80 -80 +32 +8 -32 +32 +8 -32 +32 +8 -32 +24 -8 -8 -8");
  EXPECT_EQ(RequestsOf(LowerIt(WithEvaluation(3), {.batch = 2, .steps = 1, .later = false})),
            "+100 +80 -80");
}

TEST(Lower, BatchesThatLeaveSomethingAreRepeatedAndEndTogether) {
  const Lowered lowered = LowerIt(WithEvaluation(5), {.batch = 2, .steps = 1});
  // Two more of them; what is made of all of them is that of five, in whole samples.
  EXPECT_EQ(RequestsOf(lowered),
            "+100 +80 -80 +32 +8 -32 +32 +8 -32 +32 +8 -32 +32 +8 -32 +32 +8 -32 +48 -8 -8 -8 -8 "
            "-8");
  EXPECT_EQ(LeftOver(lowered)[Category::kActivations], std::vector<Bytes>{48});
}

/// The capture ends before the last batch goes, and the step before makes more than the last.
TEST(Lower, ABatchThatTheCaptureStillHoldsGoesInLaterSteps) {
  JobMaker maker;
  for (int i = 0; i < 3; ++i) {
    maker.BeginStep();
    maker.Begin(Stage::kTransfer);
    const Storage batch = maker.Make("aten._to_copy.default", Always(100));
    maker.Begin(Stage::kForward);
    if (i == 1) maker.Make("plimsoll.data_parallel", Always(20));
    maker.Free(maker.Make("aten.relu.default", Always(50)));
    if (i < 2) maker.Free(batch);
  }
  const auto left = LeftOver(LowerIt(maker, {.steps = 8, .torch = {2, 11}}));
  EXPECT_EQ(left.at(Category::kInputs), std::vector<Bytes>{400});
}

}  // namespace
}  // namespace plimsoll::lower_test

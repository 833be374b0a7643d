#include "job/transforms/accumulate.h"

#include <gtest/gtest.h>

#include "job/lowering/job_for_tests.h"
#include "job/time/step_time.h"

namespace plimsoll::accumulate_test {
namespace {

using testing_job::Always;
using testing_job::JobMaker;
using testing_job::RequestsOf;

/// `for batch in loader: batch = batch.cuda()`. In bytes: the weight has 4, a batch 400, what the
/// forward makes 800, a gradient 40, what the optimizer makes 80.
class Loop {
 public:
  enum class ZeroGrad { kAfterStep, kBeforeBackward };
  struct Options {
    ZeroGrad zero_grad = ZeroGrad::kAfterStep;
    /// Something of 12 bytes that the loop computes of its results after the optimizer's step.
    bool metric = false;
    /// How many losses, of 4 bytes, the loop keeps; 0 where it keeps the last until the next.
    int keeps = 0;
  };

  explicit Loop(const Options& options) : options_(options) {
    weight_ = maker.Parameter(1);
    for (int i = 0; i < 3; ++i) Step();
  }

  std::string Requests(int micro_batches, int steps) {
    const Variant variant = AddAccumulation(maker.job, maker.variant(), micro_batches);
    return RequestsOf(Lower(maker.job, variant, *FindGpu("H200"), {.batch = 2, .steps = steps}));
  }

  JobMaker maker;

 private:
  TensorUse Use(Storage storage) { return maker.Floats(storage, {Always(1)}); }

  void Step() {
    maker.BeginStep();
    maker.Begin(Stage::kTransfer);
    batch_ = maker.Make("aten._to_copy.default", Always(100));
    maker.Begin(Stage::kForward);
    const Storage activation =
        maker.Make("aten.exp.default", Always(200), {Arg(Use(batch_)), Arg(Use(weight_))});
    const Storage loss = maker.Make("aten.sum.default", Always(1), {Arg(Use(activation))});
    if (options_.zero_grad == ZeroGrad::kBeforeBackward && gradient_ != 0) maker.Free(gradient_);
    maker.Begin(Stage::kBackward);
    gradient_ = maker.Make("aten.mul.Tensor", Always(10), {Arg(Use(activation))});
    maker.Free(activation);
    maker.Label(Category::kGradients, gradient_);
    maker.Begin(Stage::kOptimizer);
    maker.Free(maker.Make("aten._foreach_sqrt.default", Always(20), {Arg(Use(gradient_))}));
    if (options_.zero_grad == ZeroGrad::kAfterStep) maker.Free(gradient_);
    if (options_.metric) {
      maker.Free(maker.Make("aten.mean.default", Always(3), {Arg(Use(loss))}));
    }
    losses_.push_back(loss);
    if (losses_.size() > static_cast<std::size_t>(options_.keeps)) {
      maker.Free(losses_.front());
      losses_.erase(losses_.begin());
    }
    maker.Free(batch_);  // the loader's next batch takes its name
  }

  const Options options_;
  Storage weight_ = 0, batch_ = 0, gradient_ = 0;
  std::vector<Storage> losses_;
};

constexpr const char* kHead = " +400 +800 +4 +40 -800";
/// The gradient is added to that of the first as soon as it is there.
constexpr const char* kAdded = " +400 +800 +4 +40 -40 -800";

std::string Text(std::initializer_list<const char*> parts) {
  std::string text;
  for (const char* part : parts) text += part;
  return text.substr(text.front() == ' ' ? 1 : 0);
}

TEST(Accumulate, ABatchGoesWhenTheNextTakesItsName) {
  Loop loop({});
  EXPECT_EQ(loop.Requests(1, 1), Text({"+4", kHead, " +80 -80 -40 -4 -400"}));
  EXPECT_EQ(loop.Requests(3, 1),
            Text({"+4", kHead, " -4 -400", kAdded, " -4 -400", kAdded, " +80 -80 -40 -4 -400"}));
}

TEST(Accumulate, NothingPilesUp) {
  for (const auto zero_grad : {Loop::ZeroGrad::kAfterStep, Loop::ZeroGrad::kBeforeBackward}) {
    Loop loop({.zero_grad = zero_grad, .metric = true, .keeps = 2});
    const auto left = [&](int steps) {
      const Variant variant = AddAccumulation(loop.maker.job, loop.maker.variant(), 4);
      const Lowered lowered =
          Lower(loop.maker.job, variant, *FindGpu("H200"), {.batch = 2, .steps = steps});
      Bytes held = 0;
      for (const Request& r : lowered.workload.requests) {
        const Bytes bytes = lowered.blocks[r.allocation].requested;
        held += r.kind == Request::Kind::kAllocate ? bytes : -bytes;
      }
      return held;
    };
    EXPECT_EQ(left(3), 4 + 2 * 4);
    EXPECT_EQ(left(8), left(3));
  }
}

TEST(Accumulate, TheLastCapturedStepMayKeepWhatThoseBeforeFree) {
  JobMaker maker;
  for (int i = 0; i < 3; ++i) {
    maker.BeginStep();
    maker.Begin(Stage::kForward);
    const Storage out = maker.Make("aten.exp.default", Always(100));
    maker.Begin(Stage::kBackward);
    if (i < 2) maker.Free(out);
    maker.Begin(Stage::kOptimizer);
  }
  const Variant variant = AddAccumulation(maker.job, maker.variant(), 3);
  EXPECT_EQ(RequestsOf(Lower(maker.job, variant, *FindGpu("H200"), {.batch = 2, .steps = 3})),
            "+400 -400 +400 -400 +400 -400 +400 -400 +400 -400 +400 -400 +400 +400 -400 +400 -400");
}

TEST(Accumulate, ZeroGradIsOfTheOptimizersStep) {
  Loop after({.zero_grad = Loop::ZeroGrad::kAfterStep});
  Loop before({.zero_grad = Loop::ZeroGrad::kBeforeBackward});
  EXPECT_EQ(before.Requests(2, 3), after.Requests(2, 3));
}

TEST(Accumulate, AMetricIsComputedOfEachMicroBatch) {
  Loop loop({.metric = true});
  EXPECT_EQ(loop.Requests(2, 1),
            Text({"+4", kHead, " +12 -12 -4 -400", kAdded, " +80 -80 -40 +12 -12 -4 -400"}));
}

TEST(Accumulate, WhatEachMicroBatchKeepsStays) {
  Loop loop({.keeps = 1000});
  EXPECT_EQ(loop.Requests(2, 1), Text({"+4", kHead, " -400", kAdded, " +80 -80 -40 -400"}));
}

TEST(Accumulate, ABatchThatServesTwoStepsIsNotSplit) {
  JobMaker maker;
  for (int i = 0; i < 3; ++i) {
    maker.BeginStep();
    if (i != 1) maker.Begin(Stage::kTransfer);
    maker.Begin(Stage::kForward);
    maker.Make("aten.exp.default", Always(100));
    maker.Begin(Stage::kBackward);
    maker.Begin(Stage::kOptimizer);
  }
  EXPECT_NE(CannotAccumulate(maker.job, maker.variant()), std::nullopt);
  Loop plain({});
  EXPECT_EQ(CannotAccumulate(plain.maker.job, plain.maker.variant()), std::nullopt);
}

TEST(Accumulate, OfLongStepsTheFirstMicroBatchesAreWrittenAndTheTimeIsOfAll) {
  Loop loop({});
  const auto duration = [&](const Variant& variant) {
    return StepTime(loop.maker.job, variant, *FindGpu("H200"), 2).us;
  };
  const Variant written = AddAccumulation(loop.maker.job, loop.maker.variant(), 100);
  const Variant repeated = AddAccumulation(loop.maker.job, loop.maker.variant(), 100, 0);
  EXPECT_EQ(repeated.passes, 100);
  EXPECT_EQ(PassesOf(repeated), 4);
  EXPECT_NEAR(duration(repeated), duration(written), 0.001 * duration(written));
}

}  // namespace
}  // namespace plimsoll::accumulate_test

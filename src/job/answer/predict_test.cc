#include "job/answer/predict.h"

#include <gtest/gtest.h>

#include <numeric>

#include "job/answer/max_batch.h"
#include "job/answer/prediction_invariants.h"
#include "job/lowering/job_for_tests.h"
#include "job/rules/testing.h"

namespace plimsoll::predict_test {
namespace {

using testing_job::AddConvolution;
using testing_job::Always;
using testing_job::Each;
using testing_job::JobMaker;
using testing_job::kMiBOfFloats;
using testing_job::TrainingLoop;
using testing_job::WithRoom;

/// 40 MiB of parameters, and 8 MiB for each of the batch in the forward.
JobMaker Simple() {
  JobMaker maker;
  maker.Parameter(40 * kMiBOfFloats);
  for (int i = 0; i < 3; ++i) {
    maker.BeginStep();
    maker.Begin(Stage::kForward);
    const Storage a = maker.Make("aten.relu.default", Each(8 * kMiBOfFloats));
    maker.Begin(Stage::kBackward);
    maker.Free(a);
  }
  return maker;
}

Prediction PredictIt(const JobMaker& maker, const Gpu& gpu, const PredictOptions& options) {
  const Result<Prediction> prediction = Predict(maker.job, gpu, options);
  EXPECT_TRUE(prediction.ok()) << prediction.error().ToLine();
  for (const std::string& broken : BrokenInvariants(*prediction)) ADD_FAILURE() << broken;
  return *prediction;
}

void ExpectInOrder(const Range& range) {
  EXPECT_LE(range.low, range.best);
  EXPECT_LE(range.best, range.high);
}

// PyTorch asks whether 40 + 32 MiB are within the limit, and then maps two pages of 20 MiB.
TEST(Predict, ExpandableSegmentsMayHoldUpToAPageAboveTheLimit) {
  const Prediction p =
      PredictIt(Simple(), WithRoom(kGiB),
                {.batch = 4, .conf = "expandable_segments:True", .limit = 72 * kMiB});
  EXPECT_TRUE(p.trial.fits);
  EXPECT_FALSE(p.trial.surely_fits);
  EXPECT_EQ(p.trial.room, 72 * kMiB);
  EXPECT_EQ(p.trial.needs.reserved.best, 80 * kMiB);
  EXPECT_LE(p.trial.needs.reserved.best, p.trial.most);
  const Prediction less =
      PredictIt(Simple(), WithRoom(kGiB),
                {.batch = 4, .conf = "expandable_segments:True", .limit = 71 * kMiB});
  EXPECT_FALSE(less.trial.fits);
}

TEST(Predict, PeaksAreThoseOfTheAllocator) {
  const Prediction p = PredictIt(Simple(), WithRoom(kGiB), {.batch = 4});
  EXPECT_EQ(p.trial.needs.allocated.best, 72 * kMiB);
  EXPECT_EQ(p.trial.needs.reserved.best, 72 * kMiB);
  EXPECT_EQ(p.trial.needs.device.best, 72 * kMiB + p.gpu.context.bytes);
  EXPECT_TRUE(p.trial.fits);
  EXPECT_TRUE(p.trial.surely_fits);
  EXPECT_EQ(p.reserved_after_step, std::vector<Bytes>(5, 72 * kMiB));
  EXPECT_TRUE(p.assumptions.empty());
}

TEST(Predict, ThePeakIsNamed) {
  const Prediction p = PredictIt(Simple(), WithRoom(kGiB), {.batch = 4});
  EXPECT_EQ(p.peak.step, 0);
  EXPECT_EQ(p.peak.stage, Stage::kForward);
  EXPECT_EQ(p.peak_op, "aten.relu.default");
  EXPECT_EQ(p.peak_where, "train.py:7 in step");
  EXPECT_EQ(p.peak_module, "layer");
  ASSERT_EQ(p.holders.size(), 2u);
  EXPECT_EQ(p.holders[0].where, "the model") << "the largest first";
  EXPECT_EQ(p.holders[1].bytes, 32 * kMiB);
}

TEST(Predict, TheAccountAddsUpToTheDeviceFigure) {
  for (const std::int64_t batch : {1, 3, 17, 1000}) {
    for (const JobMaker& maker : {Simple(), TrainingLoop()}) {
      const Prediction p = PredictIt(maker, *FindGpu("H200"), {.batch = batch});
      Bytes sum = 0;
      for (const AccountLine& line : p.account) sum += line.bytes;
      EXPECT_EQ(sum, p.trial.needs.device.best) << batch;
    }
  }
}

TEST(Predict, RangesContainTheBestFigure) {
  for (const TorchVersion torch : {TorchVersion{2, 11}, TorchVersion{2, 13}}) {
    const Prediction p =
        PredictIt(TrainingLoop(), *FindGpu("H200"), {.batch = 100'000, .torch = torch});
    ExpectInOrder(p.trial.needs.allocated);
    ExpectInOrder(p.trial.needs.reserved);
    ExpectInOrder(p.trial.needs.device);
  }
}

TEST(Predict, UnknownOperatorsAreNamed) {
  JobMaker maker;
  maker.BeginStep();
  maker.Make("mylib.fancy.default", Always(1));
  maker.job.notes = {"from the capture"};
  const Prediction p = PredictIt(maker, WithRoom(kGiB), {});
  ASSERT_EQ(p.assumptions.size(), 2u);
  EXPECT_EQ(p.assumptions[0], "from the capture");
  EXPECT_NE(p.assumptions[1].find("1 call of"), std::string::npos) << p.assumptions[1];
  EXPECT_NE(p.assumptions[1].find("mylib.fancy.default"), std::string::npos);
}

TEST(Predict, WhatExceedsTheDeviceDoesNotFitAndItsNeedIsTold) {
  const Prediction p = PredictIt(Simple(), WithRoom(70 * kMiB), {.batch = 4});
  EXPECT_FALSE(p.trial.fits);
  EXPECT_FALSE(p.trial.surely_fits);
  EXPECT_EQ(p.trial.needs.allocated.best, 72 * kMiB) << "what it would take";
  EXPECT_EQ(p.trial.room, 70 * kMiB);
  EXPECT_TRUE(PredictIt(Simple(), WithRoom(72 * kMiB), {.batch = 4}).trial.fits);
}

TEST(Predict, WhatJustFitsDoesNotSurelyFit) {
  const Prediction p = PredictIt(Simple(), WithRoom(72 * kMiB), {.batch = 4});
  EXPECT_TRUE(p.trial.fits);
  EXPECT_FALSE(p.trial.surely_fits);
}

TEST(Predict, ALimitHoldsBesideTheCapacity) {
  const Gpu large = WithRoom(10 * kGiB);
  EXPECT_TRUE(PredictIt(Simple(), large, {.batch = 4, .limit = 80 * kMiB}).trial.fits);
  const Prediction p = PredictIt(Simple(), large, {.batch = 4, .limit = 71 * kMiB});
  EXPECT_FALSE(p.trial.fits);
  EXPECT_EQ(p.trial.room, 71 * kMiB);
  const Prediction small = PredictIt(Simple(), WithRoom(70 * kMiB), {.batch = 4, .limit = kGiB});
  EXPECT_FALSE(small.trial.fits) << "the limit makes no memory";
  EXPECT_EQ(small.trial.room, 70 * kMiB);
}

TEST(Predict, TheLimitMayStandInTheSettings) {
  const Prediction p = PredictIt(Simple(), *FindGpu("H200"),
                                 {.batch = 4, .conf = "per_process_memory_fraction:0.5"});
  ASSERT_TRUE(p.limit.has_value());
  EXPECT_EQ(*p.limit, p.gpu.memory / 2);
}

TEST(Predict, AWorkspaceThatIsRefusedIsDoneWithout) {
  JobMaker maker;
  maker.BeginStep();
  maker.Begin(Stage::kForward);
  AddConvolution(maker);
  // The result alone takes 98 MiB at this batch; its workspace comes on top.
  const Prediction wide = PredictIt(maker, WithRoom(kGiB), {.batch = 128});
  ASSERT_GT(wide.trial.needs.allocated.best, 98 * kMiB);
  EXPECT_EQ(wide.trial.workspaces_refused, 0);
  const Prediction tight = PredictIt(maker, WithRoom(100 * kMiB), {.batch = 128});
  EXPECT_TRUE(tight.trial.fits);
  EXPECT_EQ(tight.trial.workspaces_refused, 1);
  EXPECT_FALSE(tight.trial.surely_fits);
}

TEST(Predict, ChoosesAPrecisionThatWasCaptured) {
  JobMaker maker = Simple();
  maker.job.variants.push_back(maker.variant());
  maker.job.variants.back().precision = "amp_bf16";
  EXPECT_EQ(PredictIt(maker, WithRoom(kGiB), {}).precision, "as_written");
  EXPECT_EQ(PredictIt(maker, WithRoom(kGiB), {.precision = "amp_bf16"}).precision, "amp_bf16");
  const Result<Prediction> missing = Predict(maker.job, WithRoom(kGiB), {.precision = "fp8"});
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.error().message.find("as_written, amp_bf16"), std::string::npos);
}

TEST(Predict, SaysWhyAPrecisionWasNotCaptured) {
  JobMaker maker = Simple();
  const auto line = [&](const char* precision) {
    return Predict(maker.job, WithRoom(kGiB), {.precision = precision}).error().ToLine();
  };
  EXPECT_NE(line("amp_bf16").find("(there is: as_written); capture with"), std::string::npos);
  EXPECT_NE(line("eager").find("beside a job that is compiled"), std::string::npos);
  maker.job.no_autocast = "the script compiles";
  EXPECT_NE(line("amp_bf16").find("was not captured: the script compiles; leave --precision out"),
            std::string::npos);
  EXPECT_NE(line("fp32").find("precisions=[\"fp32\"]"), std::string::npos);
}

TEST(Predict, RefusesWhatThereIsNoModelOf) {
  const JobMaker maker = Simple();
  EXPECT_FALSE(Predict(maker.job, WithRoom(kGiB), {.conf = "backend:cudaMallocAsync"}).ok());
  EXPECT_FALSE(Predict(maker.job, WithRoom(kGiB), {.conf = "max_split_size_mb:no"}).ok());
  const JobMaker empty;
  const Result<Prediction> nothing = Predict(empty.job, WithRoom(kGiB), {});
  ASSERT_FALSE(nothing.ok());
  EXPECT_EQ(nothing.error().message, "the step allocates nothing");
}

MaxBatch Largest(const JobMaker& maker, const Gpu& gpu, const PredictOptions& options = {}) {
  return FindMaxBatch(*MakeSetting(maker.job, gpu, options));
}

TEST(MaxBatch, IsTheLargestThatFits) {
  const JobMaker maker = Simple();
  for (const Bytes room : {60 * kMiB, 100 * kMiB, 333 * kMiB, 5 * kGiB}) {
    const Gpu gpu = WithRoom(room);
    const MaxBatch found = Largest(maker, gpu);
    EXPECT_GE(found.most.batch, 1);
    EXPECT_TRUE(PredictIt(maker, gpu, {.batch = found.most.batch}).trial.fits) << room;
    EXPECT_FALSE(PredictIt(maker, gpu, {.batch = found.most.batch + 1}).trial.fits) << room;
    EXPECT_LE(found.sure.batch, found.most.batch);
  }
}

TEST(MaxBatch, GrowsWithTheRoom) {
  const JobMaker maker = Simple();
  std::int64_t before = 0;
  for (Bytes room = 30 * kMiB; room < 400 * kMiB; room += 10 * kMiB) {
    const std::int64_t batch = Largest(maker, WithRoom(room)).most.batch;
    EXPECT_GE(batch, before) << room;
    before = batch;
  }
  EXPECT_GT(before, 30);
}

TEST(MaxBatch, IsZeroWhereNothingFits) {
  const JobMaker maker = Simple();
  const MaxBatch found = Largest(maker, WithRoom(20 * kMiB));
  EXPECT_EQ(found.most.batch, 0);
  EXPECT_EQ(found.sure.batch, 0);
}

TEST(MaxBatch, ObeysTheLimit) {
  const JobMaker maker = Simple();
  EXPECT_EQ(Largest(maker, WithRoom(10 * kGiB), {.limit = 80 * kMiB}).most.batch, 5);
}

TEST(MaxBatch, EndsWhereNothingDependsOnTheBatch) {
  JobMaker maker;
  maker.Parameter(100);
  const MaxBatch found = Largest(maker, WithRoom(kGiB));
  EXPECT_GE(found.most.batch, 1 << 23);
}

TEST(Predict, AbsurdBatchesAreAnsweredToo) {
  JobMaker maker = TrainingLoop();
  for (int i = 0; i < 200; ++i) maker.Make("aten.relu.default", Each(std::int64_t{1} << 45));
  for (const char* conf : {"", "expandable_segments:True", "roundup_power2_divisions:4"}) {
    const Prediction p = PredictIt(maker, *FindGpu("H200"), {.batch = 1 << 24, .conf = conf});
    EXPECT_FALSE(p.trial.fits) << conf;
    ExpectInOrder(p.trial.needs.device);
  }
}

}  // namespace
}  // namespace plimsoll::predict_test

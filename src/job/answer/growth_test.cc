#include "job/answer/growth.h"

#include <gtest/gtest.h>

#include "job/answer/predict.h"
#include "job/lowering/job_for_tests.h"

namespace plimsoll::growth_test {
namespace {

using testing_job::Each;
using testing_job::JobMaker;
using testing_job::kMiBOfFloats;
using testing_job::WithRoom;

/// Each step makes 8 MiB for each sample and frees it, and 1 MiB that is freed `later` steps after.
JobMaker KeepsFor(std::size_t later) {
  JobMaker maker;
  maker.Parameter(40 * kMiBOfFloats);
  std::vector<Storage> kept;
  for (std::size_t i = 0; i < 3; ++i) {
    maker.BeginStep();
    maker.Begin(Stage::kForward);
    const Storage a = maker.Make("aten.relu.default", Each(8 * kMiBOfFloats));
    kept.push_back(maker.Make("aten.addmm.default", Each(kMiBOfFloats)));
    maker.Begin(Stage::kBackward);
    maker.Free(a);
    if (i >= later) maker.Free(kept[i - later]);
  }
  return maker;
}

std::optional<Growth> GrowthOf(const JobMaker& maker, Bytes room) {
  const Result<Prediction> prediction = Predict(maker.job, WithRoom(room), {.batch = 4});
  EXPECT_TRUE(prediction.ok());
  return prediction->growth;
}

TEST(Growth, WhatEveryStepKeepsEndsTheJob) {
  const std::optional<Growth> growth = GrowthOf(KeepsFor(3), kGiB);
  ASSERT_TRUE(growth.has_value());
  EXPECT_EQ(growth->bytes, 4 * kMiB);
  // 40 MiB of parameters and 32 of activations leave room for 238 times 4 MiB, less what segments
  // of 20 MiB leave unused.
  EXPECT_LE(growth->steps, 238);
  const auto fits = [&](std::int64_t steps) {
    return Predict(KeepsFor(3).job, WithRoom(kGiB), {.batch = 4, .steps = static_cast<int>(steps)})
        ->trial.fits;
  };
  EXPECT_TRUE(fits(growth->steps));
  EXPECT_FALSE(fits(growth->steps + 1));
  EXPECT_TRUE(growth->EndsTheJob());
  ASSERT_FALSE(growth->holders.empty());
  EXPECT_EQ(growth->holders.front().bytes, 4 * kMiB);
  // Let go of in time, the same job is one that keeps nothing.
  ASSERT_TRUE(growth->without.has_value());
  const Result<Prediction> clean = Predict(KeepsFor(0).job, WithRoom(kGiB), {.batch = 4});
  EXPECT_EQ(growth->without->needs.reserved.best, clean->trial.needs.reserved.best);
  EXPECT_TRUE(growth->without->fits);
}

TEST(Growth, IsFoundWhereTheCardIsFullBeforeItCanBeTold) {
  // Three steps fit, which keep 12 MiB each, and five do not.
  const auto predicted = [](std::int64_t steps) {
    Result<Prediction> found = Predict(KeepsFor(3).job, WithRoom(214 * kMiB),
                                       {.batch = 12, .steps = static_cast<int>(steps)});
    EXPECT_TRUE(found.ok());
    return std::move(*found);
  };
  ASSERT_TRUE(predicted(3).trial.fits);
  ASSERT_FALSE(predicted(5).trial.fits);
  const std::optional<Growth> growth = predicted(3).growth;
  ASSERT_TRUE(growth.has_value());
  EXPECT_TRUE(growth->EndsTheJob());
  EXPECT_EQ(growth->bytes, 12 * kMiB);
  EXPECT_TRUE(predicted(growth->steps).trial.fits);
  EXPECT_FALSE(predicted(growth->steps + 1).trial.fits);
}

TEST(Growth, IsFoundWhereFewStepsComeBeforeAnEvaluation) {
  JobMaker maker = KeepsFor(3);
  maker.variant().later.push_back({.stage = Stage::kEvaluation});
  const Result<Prediction> prediction = Predict(maker.job, WithRoom(kGiB), {.batch = 4});
  EXPECT_EQ(prediction->steps, 3);
  ASSERT_TRUE(prediction->growth.has_value());
  EXPECT_EQ(prediction->growth->bytes, 4 * kMiB);
}

TEST(Growth, WhatGoesInTheStepOrInTheNextDoesNotGrow) {
  EXPECT_FALSE(GrowthOf(KeepsFor(0), kGiB).has_value());
  EXPECT_FALSE(GrowthOf(KeepsFor(1), kGiB).has_value());
}

/// A job that keeps nothing of its steps, and 8 MiB for each sample every 50 of them.
JobMaker KeepsEvery50() {
  JobMaker maker = KeepsFor(0);
  maker.job.growing.push_back({.branch = "train.py:63 `if step % 50 == 0:`",
                               .where = "train.py:64 in main",
                               .bytes = {16 * kMiB, 24 * kMiB},
                               .every = 50,
                               .keeper = Keeper{.name = "kept", .where = "train.py:64"}});
  return maker;
}

TEST(Growth, WhatComesDueAndLeavesMoreEachTimeEndsTheJob) {
  const Result<Prediction> prediction = Predict(KeepsEvery50().job, WithRoom(kGiB), {.batch = 4});
  ASSERT_TRUE(prediction.ok() && prediction->growth);
  const Growth& growth = *prediction->growth;
  EXPECT_EQ(growth.bytes, 32 * kMiB);
  EXPECT_EQ(growth.every, 50);
  EXPECT_EQ(growth.keeper->name, "kept");
  // As many more as there is room for, and the three that were seen.
  const Bytes left = kGiB - prediction->trial.needs.allocated.best;
  EXPECT_EQ(growth.steps, 50 * (3 + left / (32 * kMiB)));
  EXPECT_TRUE(growth.EndsTheJob());
  EXPECT_FALSE(prediction->Runs());
}

TEST(Growth, OfStepsAndOfWhatComesDueTheFirstToEndTheJobIsTold) {
  JobMaker maker = KeepsEvery50();
  Job grows_in_steps = KeepsFor(3).job;
  grows_in_steps.growing = maker.job.growing;
  // 4 MiB each step are 200 MiB in 50.
  EXPECT_EQ(Predict(grows_in_steps, WithRoom(kGiB), {.batch = 4})->growth->every, 1);
  grows_in_steps.growing[0].every = 2;
  EXPECT_EQ(Predict(grows_in_steps, WithRoom(kGiB), {.batch = 4})->growth->every, 2);
}

/// As KeepsFor(3), of which the last `most` are kept.
Job KeepsTheLast(std::int64_t most) {
  Job job = KeepsFor(3).job;
  job.keeper = Keeper{.name = "kept", .where = "train.py:9", .most = most};
  return job;
}

TEST(Growth, WhatHasRoomForFewStepsIsFilled) {
  const Result<Prediction> full = Predict(KeepsTheLast(20), WithRoom(kGiB), {.batch = 4});
  ASSERT_TRUE(full.ok() && full->growth);
  EXPECT_EQ(full->steps, 21);
  EXPECT_FALSE(full->growth->EndsTheJob());
  EXPECT_EQ(full->growth->uncounted, 0);
  EXPECT_TRUE(full->Runs());
  EXPECT_EQ(full->trial.needs.allocated.best,
            Predict(KeepsFor(3).job, WithRoom(kGiB), {.batch = 4, .steps = 21})
                ->trial.needs.allocated.best);
  // Full, it is more than the card has.
  EXPECT_FALSE(Predict(KeepsTheLast(60), WithRoom(256 * kMiB), {.batch = 4})->Runs());
}

/// Allocated at most, in steps of which each keeps 4 MiB.
Bytes AllocatedIn(const Job& job, int steps) {
  return Predict(job, WithRoom(kGiB), {.batch = 4, .steps = steps})->trial.needs.allocated.best;
}

TEST(Growth, WhatIsFullLetsGoOfTheOldest) {
  const Bytes of_three = AllocatedIn(KeepsFor(3).job, 3);
  for (const std::int64_t most : {3, 12}) {
    Job job = KeepsTheLast(most);
    // In each step one more is made before the oldest goes.
    for (const int steps : {13, 20, 40}) {
      EXPECT_EQ(AllocatedIn(job, steps), of_three + (most - 2) * 4 * kMiB);
    }
    // Or after it went.
    job.keeper->before = true;
    EXPECT_EQ(AllocatedIn(job, 20), of_three + (most - 3) * 4 * kMiB);
  }
}

TEST(Growth, WhatHasRoomForManyStepsEndsTheJobIfItsRoomIsMoreThanTheCards) {
  const Result<Prediction> more = Predict(KeepsTheLast(1000), WithRoom(kGiB), {.batch = 4});
  EXPECT_LT(more->growth->steps, 239);
  EXPECT_FALSE(more->Runs());
  const Result<Prediction> less = Predict(KeepsTheLast(200), WithRoom(kGiB), {.batch = 4});
  EXPECT_TRUE(less->Runs());
  EXPECT_EQ(less->growth->uncounted, (201 - less->steps) * 4 * kMiB);
}

TEST(Growth, WhatComesDueIsKeptUntilThereIsNoRoom) {
  JobMaker maker = KeepsEvery50();
  const auto growth = [&](std::int64_t most) {
    maker.job.growing[0].keeper->most = most;
    return *GrowthOf(maker, kGiB);
  };
  EXPECT_TRUE(growth(100).EndsTheJob());
  EXPECT_FALSE(growth(20).EndsTheJob());
  EXPECT_EQ(growth(20).uncounted, 17 * 32 * kMiB);
}

TEST(Growth, WhatComesDueAtStepsThatAreNotKnownIsNoGrowth) {
  JobMaker maker = KeepsEvery50();
  maker.job.growing[0].every = 0;
  EXPECT_FALSE(GrowthOf(maker, kGiB).has_value());
}

TEST(Growth, AJobThatDoesNotFitAtAllIsToldAsThat) {
  EXPECT_FALSE(GrowthOf(KeepsFor(3), 60 * kMiB).has_value());
}

TEST(Growth, ANumberOfEachStepDoesNotEndTheJob) {
  EXPECT_FALSE((Growth{.bytes = 512, .steps = 2'000'000}.EndsTheJob()));
}

}  // namespace
}  // namespace plimsoll::growth_test

#include "job/parallel/data_parallel.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "job/lowering/job_for_tests.h"
#include "job/lowering/lower.h"
#include "job/parallel/collective.h"

namespace plimsoll::data_parallel_test {
namespace {

using testing_job::JobMaker;
using testing_job::RequestsOf;
using testing_job::TrainingLoop;

Lowered AsRank(JobMaker maker, int steps) {
  const Variant variant = AddDataParallel(maker.job, maker.variant());
  return Lower(maker.job, variant, *FindGpu("H200"), {.batch = 2, .steps = steps});
}

Bytes AliveAtTheEnd(const Lowered& lowered) {
  Bytes alive = 0;
  for (const Request& r : lowered.workload.requests) {
    const Bytes bytes = lowered.blocks[r.allocation].requested;
    if (r.kind == Request::Kind::kAllocate) alive += bytes;
    if (r.kind == Request::Kind::kFree) alive -= bytes;
  }
  return alive;
}

Bytes AliveAlone(int steps) {
  JobMaker maker = TrainingLoop();
  return AliveAtTheEnd(
      Lower(maker.job, maker.variant(), *FindGpu("H200"), {.batch = 2, .steps = steps}));
}

// The loop has one parameter of 4000 bytes and no buffer.
TEST(DataParallel, OneBucketHoldsAllGradients) {
  for (const int steps : {1, 2, 3, 5, 8}) {
    EXPECT_EQ(AliveAtTheEnd(AsRank(TrainingLoop(), steps)), AliveAlone(steps) + 4000) << steps;
  }
}

TEST(DataParallel, NothingPilesUpOverTheSteps) {
  EXPECT_EQ(AliveAtTheEnd(AsRank(TrainingLoop(), 4)), AliveAtTheEnd(AsRank(TrainingLoop(), 9)));
}

/// What is asked for by a model with parameters of so many MiB before its first step, in MiB.
std::string Construction(const std::vector<std::int64_t>& parameters, Backend backend) {
  JobMaker maker;
  for (const std::int64_t mib : parameters) maker.Parameter(mib * (kMiB / 4));
  maker.BeginStep();
  const Variant variant = AddDataParallel(maker.job, maker.variant(), {.backend = backend});
  const Lowered lowered = Lower(maker.job, variant, *FindGpu("H200"), {.batch = 2, .steps = 1});
  std::string text;
  for (std::size_t i = parameters.size(); i < lowered.workload.requests.size(); ++i) {
    const Request& r = lowered.workload.requests[i];
    text += fmt::format("{}{} ", r.kind == Request::Kind::kAllocate ? '+' : '-',
                        lowered.blocks[r.allocation].requested / kMiB);
  }
  return text;
}

// In pieces of 250 MiB or what the last tensor makes of them, two at once; then there is a bucket.
TEST(DataParallel, WhatTheModelHoldsIsSentAtFirst) {
  EXPECT_EQ(Construction({10, 20}, Backend::kNccl), "+30 -30 +30 ");
  EXPECT_EQ(Construction({200, 100, 20, 230, 40, 30}, Backend::kNccl),
            "+300 +250 -300 +70 -250 -70 +620 ");
}
TEST(DataParallel, ATensorBySelfIsSentAsItIs) {
  EXPECT_EQ(Construction({30}, Backend::kNccl), "+30 ");
  EXPECT_EQ(Construction({10, 240, 300}, Backend::kGloo), "+250 -250 +550 ");
}
TEST(DataParallel, GlooStillHasTheLastPieceWhenTheBucketIsMade) {
  EXPECT_EQ(Construction({10, 20}, Backend::kGloo), "+30 +30 -30 ");
  EXPECT_EQ(Construction({200, 100, 20, 230, 40, 30}, Backend::kGloo),
            "+300 +250 -300 +70 -250 +620 -70 ");
}

TEST(DataParallel, WhereGradientsAreViewsTheyAreInTheBucketsAlone) {
  JobMaker maker = TrainingLoop();
  const Variant variant = AddDataParallel(maker.job, maker.variant(), {.views = true});
  for (const int steps : {1, 2, 3, 6}) {
    const Lowered lowered =
        Lower(maker.job, variant, *FindGpu("H200"), {.batch = 2, .steps = steps});
    EXPECT_EQ(AliveAtTheEnd(lowered), AliveAlone(steps)) << steps;
  }
}

/// Two gradients of 1.5 MiB and one of 4 bytes, in this order.
TEST(DataParallel, ABucketIsReducedWhenItIsFull) {
  JobMaker maker;
  maker.Parameter(1);
  for (int i = 0; i < 3; ++i) {
    maker.BeginStep();
    maker.Begin(Stage::kForward);
    maker.Begin(Stage::kBackward);
    std::vector<Storage> gradients;
    for (const std::int64_t floats : {3 << 17, 3 << 17, 1}) {
      gradients.push_back(maker.Make("aten.mul.Tensor", testing_job::Always(floats)));
    }
    for (const Storage gradient : gradients) maker.Label(Category::kGradients, gradient);
    maker.Begin(Stage::kUnknown);
    for (const Storage gradient : gradients) maker.Free(gradient);
  }
  const auto reduced = [&](const DataParallel& options) {
    const Variant variant = AddDataParallel(maker.job, maker.variant(), options);
    std::vector<Bytes> bytes;
    for (const JobEvent& event : variant.events) {
      if (event.kind == JobEvent::Kind::kStep) bytes.clear();
      if (event.kind != JobEvent::Kind::kCall) continue;
      const auto collective = CollectiveOf(maker.job, variant.calls[event.index]);
      if (collective) bytes.push_back(collective->bytes.least());
    }
    return bytes;
  };
  EXPECT_EQ(reduced({}), (std::vector<Bytes>{3 << 19, (3 << 19) + 4}));
  EXPECT_EQ(reduced({.bucket = kMiB}), (std::vector<Bytes>{3 << 19, 3 << 19, 4}));
}

// The loop has a gradient of 4000 bytes and a state of 8000, of a parameter of 1000 rows.
TEST(DataParallel, Zero1DividesTheState) {
  JobMaker maker = TrainingLoop();
  // A state in the parameter's shape.
  for (CallRecord& call : maker.variant().calls) {
    if (call.fresh[0].bytes.least() != 8000) continue;
    call.fresh[0].bytes = {4000, 4000};
    call.results[0].layout = maker.variant().model_tensors[0].layout;
  }
  const auto alive = [&](const DataParallel& options) {
    const Variant variant = AddDataParallel(maker.job, maker.variant(), options);
    return AliveAtTheEnd(Lower(maker.job, variant, *FindGpu("H200"), {.batch = 2, .steps = 4}));
  };
  using Zero = DataParallel::Zero;
  const Bytes plain = alive({.ranks = 4});
  EXPECT_EQ(alive({.ranks = 4, .zero = Zero::kState}), plain - 3000);
  // The bucket and the gradient, which is there until the next forward, are a quarter together.
  EXPECT_EQ(alive({.ranks = 4, .zero = Zero::kGradients}), plain - 3000 - 4000 - 3000);
}

TEST(DataParallel, WhatTheFlagMaySay) {
  EXPECT_EQ(ParseDataParallel("zero1:4")->zero, DataParallel::Zero::kState);
  EXPECT_EQ(ParseDataParallel("zero2:8:bucket100")->zero, DataParallel::Zero::kGradients);
  EXPECT_FALSE(ParseDataParallel("zero2:8:views"));
  EXPECT_FALSE(ParseDataParallel("zero3:8"));
  EXPECT_EQ(ParseDataParallel("4")->ranks, 4);
  EXPECT_TRUE(ParseDataParallel("4:views")->views);
  EXPECT_EQ(ParseDataParallel("4:bucket100:views")->bucket, 100 * kMiB);
  EXPECT_EQ(ParseDataParallel("4:views:gloo")->backend, Backend::kGloo);
  for (const char* text :
       {"4", "4:views", "4:views:bucket100:gloo", "zero1:4:nccl", "zero2:8:bucket100"}) {
    EXPECT_EQ(DataParallelText(*ParseDataParallel(text)), text);
  }
  for (const char* bad : {"", "1", "x", "4:", "4:bucket", "4:bucket0", "4:bucketx", "4:view"}) {
    EXPECT_FALSE(ParseDataParallel(bad)) << bad;
  }
}

}  // namespace
}  // namespace plimsoll::data_parallel_test

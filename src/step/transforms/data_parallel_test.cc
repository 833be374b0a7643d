#include "step/transforms/data_parallel.h"

#include <gtest/gtest.h>

#include "step/lowering/lower.h"
#include "step/step_for_tests.h"

namespace plimsoll {
namespace {

using testing_step::RequestsOf;
using testing_step::StepMaker;
using testing_step::TrainingLoop;

Lowered AsRank(StepMaker maker, int steps) {
  const Variant variant = AddDataParallel(maker.step, maker.variant());
  return Lower(maker.step, variant, *FindGpu("H200"), {.batch = 2, .steps = steps});
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
  StepMaker maker = TrainingLoop();
  return AliveAtTheEnd(
      Lower(maker.step, maker.variant(), *FindGpu("H200"), {.batch = 2, .steps = steps}));
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

TEST(DataParallel, WhatTheModelHoldsIsSentOnceAtFirst) {
  StepMaker maker = TrainingLoop();
  const std::string alone =
      RequestsOf(Lower(maker.step, maker.variant(), *FindGpu("H200"), {.batch = 2, .steps = 1}));
  const std::string rank = RequestsOf(AsRank(TrainingLoop(), 1));
  EXPECT_NE(alone, rank);
  EXPECT_NE(rank.find("+4000 -4000 +4000"), std::string::npos) << rank;
}

}  // namespace
}  // namespace plimsoll

#include "job/transforms/offload.h"

#include <gtest/gtest.h>

#include "job/lowering/job_for_tests.h"

namespace plimsoll::offload_test {
namespace {

using testing_job::Always;
using testing_job::Each;
using testing_job::JobMaker;
using testing_job::RequestsOf;

/// A weight of 4 bytes, a batch of 80, an activation of 800 that the backward reads, a gradient of
/// 12.
JobMaker OneLayer() {
  JobMaker maker;
  const Storage weight = maker.Parameter(1);
  maker.BeginStep();
  maker.Begin(Stage::kTransfer);
  const Storage batch = maker.Make("aten.randn.default", Each(10));
  maker.Label(Category::kInputs, batch);
  maker.Begin(Stage::kForward);
  const Storage activation =
      maker.Make("aten.mul.Tensor", Each(100), {Arg(maker.Floats(weight, {Always(1)}))});
  const Storage loss =
      maker.Make("aten.add.Tensor", Always(5), {Arg(maker.Floats(activation, {Each(100)}))});
  maker.Begin(Stage::kBackward);
  const Storage gradient =
      maker.Make("aten.mul.Tensor", Always(3), {Arg(maker.Floats(activation, {Each(100)}))});
  maker.Free(activation);
  maker.Free(loss);
  maker.Begin(Stage::kOptimizer);
  maker.Free(gradient);
  maker.Free(batch);
  return maker;
}

std::string Requests(const JobMaker& maker, const Variant& variant) {
  return RequestsOf(Lower(maker.job, variant, *FindGpu("H200"), {.batch = 2, .steps = 1}));
}

TEST(ActivationOffload, LeavesAfterTheForwardAndComesBackForTheBackward) {
  JobMaker maker = OneLayer();
  EXPECT_EQ(Requests(maker, maker.variant()), "+4 +80 +800 +20 +12 -800 -20 -12 -80");
  const Variant changed = AddActivationOffload(maker.job, maker.variant());
  EXPECT_EQ(Requests(maker, changed), "+4 +80 +800 +20 -800 +800 +12 -800 -20 -12 -80");
}

TEST(ActivationOffload, WhatTheBackwardDoesNotReadStays) {
  JobMaker maker = OneLayer();
  const Variant changed = AddActivationOffload(maker.job, maker.variant());
  int to_host = 0;
  for (const CallRecord& call : changed.calls) {
    to_host += maker.job.strings[call.op] == "plimsoll.to_host_";
  }
  EXPECT_EQ(to_host, 1) << "neither the loss nor the batch is saved";
}

}  // namespace
}  // namespace plimsoll::offload_test

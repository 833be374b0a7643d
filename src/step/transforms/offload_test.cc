#include "step/transforms/offload.h"

#include <gtest/gtest.h>

#include "step/lowering/step_for_tests.h"

namespace plimsoll::offload_test {
namespace {

using testing_step::Always;
using testing_step::Each;
using testing_step::RequestsOf;
using testing_step::StepMaker;

/// A weight of 4 bytes, a batch of 80, an activation of 800 that the backward reads, a gradient of
/// 12.
StepMaker OneLayer() {
  StepMaker maker;
  const Storage weight = maker.Parameter(1);
  maker.BeginStep();
  maker.Begin(Phase::kInputs);
  const Storage batch = maker.Make("aten.randn.default", Each(10));
  maker.Label(Category::kInputs, batch);
  maker.Begin(Phase::kForward);
  const Storage activation =
      maker.Make("aten.mul.Tensor", Each(100), {Arg(maker.Floats(weight, {Always(1)}))});
  const Storage loss =
      maker.Make("aten.add.Tensor", Always(5), {Arg(maker.Floats(activation, {Each(100)}))});
  maker.Begin(Phase::kBackward);
  const Storage gradient =
      maker.Make("aten.mul.Tensor", Always(3), {Arg(maker.Floats(activation, {Each(100)}))});
  maker.Free(activation);
  maker.Free(loss);
  maker.Begin(Phase::kOptimizer);
  maker.Free(gradient);
  maker.Free(batch);
  return maker;
}

std::string Requests(const StepMaker& maker, const Variant& variant) {
  return RequestsOf(Lower(maker.step, variant, *FindGpu("H200"), {.batch = 2, .steps = 1}));
}

TEST(ActivationOffload, LeavesAfterTheForwardAndComesBackForTheBackward) {
  StepMaker maker = OneLayer();
  EXPECT_EQ(Requests(maker, maker.variant()), "+4 +80 +800 +20 +12 -800 -20 -12 -80");
  const Variant changed = AddActivationOffload(maker.step, maker.variant());
  EXPECT_EQ(Requests(maker, changed), "+4 +80 +800 +20 -800 +800 +12 -800 -20 -12 -80");
}

TEST(ActivationOffload, WhatTheBackwardDoesNotReadStays) {
  StepMaker maker = OneLayer();
  const Variant changed = AddActivationOffload(maker.step, maker.variant());
  int to_host = 0;
  for (const CallRecord& call : changed.calls) {
    to_host += maker.step.strings[call.op] == "plimsoll.to_host_";
  }
  EXPECT_EQ(to_host, 1) << "neither the loss nor the batch is saved";
}

}  // namespace
}  // namespace plimsoll::offload_test

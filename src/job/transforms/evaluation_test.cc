#include "job/transforms/evaluation.h"

#include <gtest/gtest.h>

#include "job/lowering/job_for_tests.h"

namespace plimsoll::evaluation_test {
namespace {

using testing_job::Each;
using testing_job::JobMaker;
using testing_job::RequestsOf;

/// Two layers of 100 floats a sample and an output of 10, for three batches. With a graph the
/// layers go with the output, when the next batch has one; `keeps`: outputs are put in a list.
JobMaker Evaluates(bool graph, bool keeps) {
  JobMaker maker;
  maker.BeginStep();
  Storage before = 0;
  std::vector<Storage> of_graph;
  for (int i = 0; i < 3; ++i) {
    maker.BeginPart({.stage = Stage::kEvaluation});
    const Storage a = maker.Make("aten.relu.default", Each(100));
    TensorUse used = maker.Floats(a, {Each(100)});
    used.needs_grad = graph;
    const Storage b = maker.Make("aten.relu.default", Each(100), {Arg(used)});
    if (!graph) maker.Free(a);
    const Storage output =
        maker.Make("aten.relu.default", Each(10), {Arg(maker.Floats(b, {Each(100)}))});
    if (!graph) maker.Free(b);
    for (const Storage old : of_graph) maker.Free(old);
    if (!keeps && before != 0) maker.Free(before);
    before = output;
    of_graph = graph ? std::vector<Storage>{a, b} : std::vector<Storage>();
  }
  return maker;
}

std::string Requests(const JobMaker& maker, const Variant& variant, std::int64_t batch = 2) {
  return RequestsOf(Lower(maker.job, variant, *FindGpu("H200"), {.batch = batch, .steps = 1}));
}

TEST(Evaluation, WithoutAGraphLayersGoWhenTheyAreUsed) {
  JobMaker with = Evaluates(true, false);
  JobMaker without = Evaluates(false, false);
  EXPECT_TRUE(EvaluationHasGraph(with.variant()));
  EXPECT_FALSE(EvaluationHasGraph(without.variant()));
  EXPECT_EQ(Requests(with, EvaluateWithoutGraph(with.variant())),
            Requests(without, without.variant()));
}

TEST(Evaluation, OutputsOfABatchGoToTheHost) {
  JobMaker keeps = Evaluates(false, true);
  EXPECT_TRUE(EvaluationKeepsOutputs(keeps.variant()));
  EXPECT_FALSE(EvaluationKeepsOutputs(Evaluates(false, false).variant()));
  const std::string batch = "+800 +800 -800 +80 -800 -80";
  EXPECT_EQ(Requests(keeps, KeepOutputsOnHost(keeps.variant())), batch + " " + batch + " " + batch);
}

/// A variable has the output until the next one is there.
TEST(Evaluation, AnOutputOfALoopThatFetchesInPartsOfItsOwnIsNotKept) {
  JobMaker maker;
  maker.BeginStep();
  Storage input = 0, output = 0;
  for (int i = 0; i < 3; ++i) {
    maker.BeginPart({.stage = Stage::kEvaluation});
    const Storage fetched = maker.Make("aten._to_copy.default", Each(10));
    if (input != 0) maker.Free(input);
    input = fetched;
    maker.BeginPart({.stage = Stage::kEvaluation});
    maker.Free(maker.Make("aten.relu.default", Each(10)));
    const Storage computed = maker.Make("aten.relu.default", Each(100));
    if (output != 0) maker.Free(output);
    output = computed;
  }
  EXPECT_FALSE(EvaluationKeepsOutputs(maker.variant()));
}

TEST(Evaluation, WhatIsComputedOfThemAloneIsThereToo) {
  JobMaker keeps = Evaluates(false, true);
  const Storage first = keeps.last_call().fresh[0].storage;
  const std::string before = Requests(keeps, KeepOutputsOnHost(keeps.variant()));
  keeps.BeginPart({.stage = Stage::kEvaluation, .batches = {6, 4}, .seen = 3});
  keeps.Free(keeps.Make("aten.cat.default", Each(30), {Arg(keeps.Floats(first, {Each(10)}))}));
  keeps.Free(first);
  EXPECT_EQ(Requests(keeps, KeepOutputsOnHost(keeps.variant())), before);
}

TEST(Evaluation, SmallerBatchesAreSmaller) {
  JobMaker maker = Evaluates(false, false);
  EXPECT_TRUE(EvaluationFollowsBatch(maker.job, maker.variant()));
  EXPECT_EQ(Requests(maker, EvaluateInShares(maker.variant(), 4), 8),
            Requests(maker, maker.variant(), 2));
}

TEST(Evaluation, WholeBatchesAreThoseBeforeTheyWereCut) {
  const JobMaker maker = Evaluates(false, false);
  const Variant& variant = maker.job.variants.front();
  const auto of_four = [&](const Variant& whole) {
    return RequestsOf(
        Lower(maker.job, whole, *FindGpu("H200"), {.batch = 2, .micro_batches = 4, .steps = 1}));
  };
  EXPECT_EQ(of_four(variant), Requests(maker, variant, 2));
  EXPECT_EQ(of_four(EvaluateWholeBatches(variant)), Requests(maker, variant, 8));
  EXPECT_EQ(of_four(EvaluateInShares(EvaluateWholeBatches(variant), 2)),
            Requests(maker, variant, 4));
}

}  // namespace
}  // namespace plimsoll::evaluation_test

#include "job/lowering/graph_runs.h"

#include <gtest/gtest.h>

#include <string>

#include "job/lowering/job_for_tests.h"

namespace plimsoll::graph_runs_test {
namespace {

using testing_job::Always;
using testing_job::JobMaker;
using Kind = GraphRegion::Kind;

/// "w" warms up, "r" is recorded, "." is replayed.
std::string RunsOf(const std::vector<GraphRegion>& regions) {
  GraphRuns runs;
  std::string text;
  for (const GraphRegion& region : regions) {
    const GraphRun run = runs.Begin(region);
    text += run == GraphRun::kWarmUp ? 'w' : run == GraphRun::kRecording ? 'r' : '.';
  }
  return text;
}

TEST(GraphRuns, WarmUpThenAreRecordedThenReplayed) {
  const GraphRegion forward{.kind = Kind::kForward, .graph = 1};
  const GraphRegion backward{.kind = Kind::kBackward, .graph = 2};
  EXPECT_EQ(RunsOf({forward, backward, forward, backward, forward, backward}), "wwrr..");
}

TEST(GraphRuns, ABlockThatRunsTwiceAForwardIsOfOneGeneration) {
  const GraphRegion forward{.kind = Kind::kForward, .graph = 1};
  const GraphRegion backward{.kind = Kind::kBackward, .graph = 2};
  EXPECT_EQ(RunsOf({forward, forward, backward, backward,  //
                    forward, forward, backward, backward, forward}),
            "wwwwrrrr.");
}

TEST(GraphRuns, WhatFollowsANewRegionWarmsUpWithIt) {
  const GraphRegion forward{.kind = Kind::kForward, .graph = 1};
  const GraphRegion other{.kind = Kind::kForward, .graph = 3};
  const GraphRegion backward{.kind = Kind::kBackward, .graph = 2};
  EXPECT_EQ(RunsOf({forward, backward, other, backward, other, backward}), "wwwwrr");
}

TEST(GraphRuns, EachRunWithoutABackwardIsAGeneration) {
  const GraphRegion region{.kind = Kind::kInference, .graph = 1};
  EXPECT_EQ(RunsOf({region, region, region}), "wr.");
}

Argument Use(Storage storage, JobMaker& maker, std::int64_t floats) {
  return {maker.Floats(storage, {Always(floats)})};
}

void AddMark(JobMaker& maker, std::string_view op, std::vector<Argument> inputs,
             std::string_view kind) {
  maker.Make(op, Always(1), std::move(inputs));
  CallRecord& call = maker.last_call();
  call.results.clear();
  call.fresh.clear();
  call.kwargs = {{maker.job.strings.Intern("graph"), {Always(kind == "forward" ? 1 : 2)}},
                 {maker.job.strings.Intern(kind), {true}}};
}

/// Each step has a batch that is saved for the backward, a region for each direction with a
/// product, and something behind them.
JobMaker GraphedLoop() {
  JobMaker maker;
  for (int i = 0; i < 3; ++i) {
    maker.BeginStep();
    maker.Begin(Stage::kForward);
    const Storage batch = maker.Make("aten.randn.default", Always(100));
    AddMark(maker, "inductor.graph", {Use(batch, maker, 100)}, "forward");
    const Storage made = maker.Make("aten.relu.default", Always(50), {Use(batch, maker, 100)});
    AddMark(maker, "inductor.graph_end", {}, "forward");
    maker.Begin(Stage::kBackward);
    AddMark(maker, "inductor.graph", {Use(made, maker, 50)}, "backward");
    const Storage gradient = maker.Make("aten.relu.default", Always(25), {Use(batch, maker, 100)});
    maker.Free(made);
    AddMark(maker, "inductor.graph_end", {}, "backward");
    maker.Begin(Stage::kOptimizer);
    maker.Free(maker.Make("aten.relu.default", Always(10)));
    maker.Free(gradient);
    maker.Free(batch);
  }
  return maker;
}

/// "+400" in the common pool, "(+200" in that of the graphs; "~0": the cache is emptied.
std::string Pools(const Lowered& lowered, int step) {
  std::string text;
  for (std::size_t i = 0; i < lowered.workload.requests.size(); ++i) {
    if (lowered.moments[i].step != step) continue;
    const Request& r = lowered.workload.requests[i];
    text += text.empty() ? "" : " ";
    if (r.pool == 1) text += '(';
    text += r.kind == Request::Kind::kAllocate ? '+' : r.kind == Request::Kind::kFree ? '-' : '~';
    text += std::to_string(lowered.blocks[r.allocation].requested);
  }
  return text;
}

TEST(LowerGraphs, RegionsHaveAPoolAndARecordingCopiesInputsUntilTheirLastUse) {
  const JobMaker maker = GraphedLoop();
  const Lowered lowered =
      Lower(maker.job, maker.job.variants.front(), *FindGpu("H200"), {.batch = 2, .steps = 5});
  EXPECT_EQ(lowered.workload.pools(), 2u);
  EXPECT_EQ(Pools(lowered, 0), "+400 ~0 (+200 (+100 (-200 +40 -40 (-100 -400");
  // Emptied before each recording; the backward's input is in the pool already.
  EXPECT_EQ(Pools(lowered, 1), "+400 (+400 (~0 (+200 (~0 (+100 (-400 (-200 +40 -40 (-100 -400");
  const std::string replayed = "+400 (+400 (+200 (+100 (-400 (-200 +40 -40 (-100 -400";
  EXPECT_EQ(Pools(lowered, 2), replayed);
  EXPECT_EQ(Pools(lowered, 4), replayed);
}

TEST(LowerGraphs, WorkspacesOfProductsGoBeforeAndAfterARegion) {
  JobMaker maker;
  const std::vector<Number> square = {Always(4), Always(4)};
  const Argument matrix = {maker.Floats(0, square)};
  maker.BeginStep();
  maker.Begin(Stage::kForward);
  maker.Make("aten.mm.default", square, {matrix, matrix});
  AddMark(maker, "inductor.graph", {}, "forward");
  maker.Make("aten.mm.default", square, {matrix, matrix});
  AddMark(maker, "inductor.graph_end", {}, "forward");
  maker.Make("aten.mm.default", square, {matrix, matrix});
  const Gpu gpu = *FindGpu("H200");
  const Lowered lowered =
      Lower(maker.job, maker.job.variants.front(), gpu, {.batch = 2, .steps = 1});
  const std::string workspace = std::to_string(gpu.cublas_workspace_before_2_12);
  EXPECT_EQ(Pools(lowered, 0), "+64 +" + workspace + " ~0 -" + workspace + " (+64 (+" + workspace +
                                   " (-" + workspace + " +64 +" + workspace);
}

TEST(LowerGraphs, AJobWithoutThemHasOnePool) {
  const JobMaker maker = testing_job::TrainingLoop();
  const Lowered lowered =
      Lower(maker.job, maker.job.variants.front(), *FindGpu("H200"), {.batch = 2});
  EXPECT_EQ(lowered.workload.pools(), 1u);
}

}  // namespace
}  // namespace plimsoll::graph_runs_test

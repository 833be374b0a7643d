#include "job/parallel/pipeline.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "job/lowering/job_for_tests.h"
#include "job/lowering/lower.h"
#include "job/parallel/collective.h"
#include "job/parallel/pipeline_schedule.h"
#include "job/transforms/optimizer.h"

namespace plimsoll::pipeline_test {
namespace {

using testing_job::Always;
using testing_job::Each;
using testing_job::JobMaker;

/// An embedding, four blocks and a head with 4000 bytes each; every one saves 40 bytes a sample and
/// passes 400 on, which the next one reads and frees. The optimizer has 4000 bytes of state for
/// each, made by one call for all.
JobMaker FourBlocks() {
  JobMaker maker;
  const std::vector<std::string> modules = {"embed", "h.0", "h.1", "h.2", "h.3", "head"};
  std::vector<TensorUse> parameters;
  for (const std::string& module : modules) {
    const Storage storage = maker.Parameter(1000);
    maker.variant().model_tensors.back().name = maker.job.strings.Intern(module + ".weight");
    parameters.push_back({.storage = storage,
                          .layout = maker.variant().model_tensors.back().layout,
                          .parameter = true});
  }
  const auto call = [&](const std::string& module, const Number& floats,
                        std::vector<Argument> args) {
    maker.Make("aten.mul.Tensor", floats, std::move(args));
    maker.last_call().module = maker.job.strings.Intern(module);
    return maker.last_call().results[0];
  };
  for (int step = 0; step < 3; ++step) {
    maker.BeginStep();
    maker.Begin(Stage::kForward);
    std::vector<Storage> saved;
    std::optional<TensorUse> hidden;
    for (std::size_t m = 0; m < modules.size(); ++m) {
      std::vector<Argument> args = {{parameters[m]}};
      if (hidden) args.push_back({*hidden});
      saved.push_back(call(modules[m], Each(10), args).storage);
      const TensorUse next = call(modules[m], Each(100), args);
      if (hidden) maker.Free(hidden->storage);
      hidden = next;
    }
    maker.Begin(Stage::kBackward);
    std::vector<TensorUse> gradients(modules.size());
    TensorUse back = *hidden;
    for (std::size_t m = modules.size(); m-- > 0;) {
      gradients[m] = call(modules[m], Always(1000), {{back}});
      const TensorUse next = call(modules[m], Each(100), {{back}, {parameters[m]}});
      maker.Free(back.storage);
      maker.Free(saved[m]);
      back = next;
    }
    maker.Free(back.storage);
    for (const TensorUse& gradient : gradients) maker.Label(Category::kGradients, gradient.storage);
    maker.Begin(Stage::kOptimizer);
    Argument::List of_parameters;
    Argument::List of_gradients;
    for (const TensorUse& parameter : parameters) of_parameters.push_back({parameter});
    for (const TensorUse& gradient : gradients) of_gradients.push_back({gradient});
    if (step == 0) {
      CallRecord state{.op = maker.job.strings.Intern("aten._foreach_mul.List"),
                       .args = {{of_parameters}, {of_gradients}}};
      for (std::uint32_t m = 0; m < modules.size(); ++m) {
        const Storage storage = maker.variant().storages++;
        state.results.push_back({.storage = storage, .layout = parameters[m].layout});
        state.fresh.push_back({.storage = storage, .bytes = Always(4000), .result = m});
      }
      maker.variant().calls.push_back(state);
      maker.variant().events.push_back(
          {.kind = JobEvent::Kind::kCall,
           .index = static_cast<std::uint32_t>(maker.variant().calls.size() - 1)});
      for (const NewStorage& fresh : state.fresh) {
        maker.Label(Category::kOptimizerState, fresh.storage);
      }
    }
    maker.Begin(Stage::kUnknown);
    for (const TensorUse& gradient : gradients) maker.Free(gradient.storage);
  }
  return maker;
}

Lowered OnGpu(const Pipeline& pipeline, int steps) {
  JobMaker maker = FourBlocks();
  const Result<Variant> variant = AddPipeline(maker.job, maker.variant(), pipeline);
  EXPECT_TRUE(variant.ok());
  return Lower(maker.job, *variant, *FindGpu("H200"), {.batch = 2, .steps = steps});
}

/// What one of the buffers for received tensors has at a batch of 2.
constexpr Bytes kBuffer = 800;

/// At the end, or the most at any time.
std::pair<Bytes, Bytes> AliveIn(const Lowered& lowered) {
  Bytes alive = 0;
  Bytes most = 0;
  for (const Request& r : lowered.workload.requests) {
    const Bytes bytes = lowered.blocks[r.allocation].requested;
    alive += r.kind == Request::Kind::kAllocate ? bytes : -bytes;
    most = std::max(most, alive);
  }
  return {alive, most};
}

TEST(Pipeline, AGpuHasItsBlocksAndTheirState) {
  // Two blocks and the embedding, or two and the head; a buffer for what each micro-batch receives.
  for (const int stage : {0, 1}) {
    for (const int steps : {1, 2, 3, 6}) {
      const Lowered lowered = OnGpu({.stages = 2, .micro_batches = 4, .stage = stage}, steps);
      EXPECT_EQ(AliveIn(lowered).first, 3 * 4000 + 3 * 4000 + 4 * kBuffer) << stage << " " << steps;
    }
  }
  const Lowered middle = OnGpu({.stages = 4, .micro_batches = 4, .stage = 1}, 3);
  EXPECT_EQ(AliveIn(middle).first, 4000 + 4000 + 2 * 4 * kBuffer);
}

TEST(Pipeline, AsManyMicroBatchesAreInFlightAsThereAreStagesFromHereOn) {
  const auto peak = [](int stage, int micro_batches) {
    const Pipeline pipeline{.stages = 4, .micro_batches = micro_batches, .stage = stage};
    return AliveIn(OnGpu(pipeline, 3)).second - 2 * micro_batches * kBuffer;
  };
  // One more micro-batch in flight is what a block saves (80) more, and what it sent.
  EXPECT_EQ(peak(1, 8) - peak(2, 8), peak(1, 16) - peak(2, 16));
  EXPECT_GE(peak(1, 8) - peak(2, 8), 80);
  EXPECT_EQ(peak(1, 8), peak(1, 16));
  EXPECT_LT(peak(1, 1), peak(1, 8));
}

TEST(Pipeline, TheFullestIsTaken) {
  const auto peak = [](std::optional<int> stage) {
    return AliveIn(OnGpu({.stages = 4, .micro_batches = 8, .stage = stage}, 3)).second;
  };
  const Bytes most = std::max({peak(0), peak(1), peak(2), peak(3)});
  EXPECT_EQ(peak(std::nullopt), most);
}

TEST(Pipeline, WhatAnotherGpuMakesIsReceivedAndWhatItReadsIsSent) {
  JobMaker maker = FourBlocks();
  const Result<Variant> variant =
      AddPipeline(maker.job, maker.variant(), {.stages = 4, .micro_batches = 2, .stage = 1});
  ASSERT_TRUE(variant.ok());
  int sends = 0;
  int received = 0;
  for (const JobEvent& event : variant->events) {
    if (event.kind == JobEvent::Kind::kStep) sends = received = 0;
    if (event.kind != JobEvent::Kind::kCall) continue;
    sends += CollectiveOf(maker.job, variant->calls[event.index]).has_value();
    received += maker.job.strings[variant->calls[event.index].op] == "plimsoll.pipeline";
  }
  // Of each micro-batch: activations to the next, gradients to the one before. There are buffers
  // for what comes from them, made in the first step.
  EXPECT_EQ(sends, 4);
  EXPECT_EQ(received, 0);
}

TEST(Pipeline, AnotherOptimizerHasThisGpusParametersAlone) {
  JobMaker maker = FourBlocks();
  const Result<Variant> stage =
      AddPipeline(maker.job, maker.variant(), {.stages = 4, .micro_batches = 2, .stage = 1});
  ASSERT_TRUE(stage.ok());
  const Result<Variant> variant = ReplaceOptimizer(maker.job, *stage, {.name = "adamw"});
  ASSERT_TRUE(variant.ok());
  const Lowered lowered = Lower(maker.job, *variant, *FindGpu("H200"), {.batch = 2, .steps = 3});
  EXPECT_EQ(AliveIn(lowered).first, 3 * 4000 + 2 * 2 * kBuffer);
}

TEST(Pipeline, InterleavedPiecesAreSpreadOverTheModel) {
  // h.0 and h.2 with the embedding; h.1 and h.3 with the head. One of the four ends of two pieces
  // is that of the model.
  for (const int stage : {0, 1}) {
    const Lowered lowered =
        OnGpu({.stages = 2, .micro_batches = 4, .chunks = 2, .stage = stage}, 4);
    EXPECT_EQ(AliveIn(lowered).first, 3 * 4000 + 3 * 4000 + 3 * 4 * kBuffer) << stage;
  }
}

TEST(PipelineSchedule, OneForwardOneBackward) {
  std::string text;
  for (const PipelineTurn& turn : ScheduleOf({.stages = 3, .micro_batches = 4}, 0)) {
    text += (turn.backward ? "B" : "F") + std::to_string(turn.micro_batch);
  }
  EXPECT_EQ(text, "F0F1F2B0F3B1B2B3");
}

TEST(PipelineSchedule, EveryChunkOfEveryMicroBatchRunsOnceEachWay) {
  for (const int stage : {0, 1, 3}) {
    const Pipeline pipeline{.stages = 4, .micro_batches = 8, .chunks = 3};
    std::set<std::tuple<bool, int, int>> seen;
    for (const PipelineTurn& turn : ScheduleOf(pipeline, stage)) {
      EXPECT_TRUE(seen.insert({turn.backward, turn.chunk, turn.micro_batch}).second);
      EXPECT_LT(turn.micro_batch, 8);
      if (turn.backward) {
        EXPECT_TRUE(seen.contains({false, turn.chunk, turn.micro_batch}));
      }
    }
    EXPECT_EQ(seen.size(), 2u * 8 * 3);
  }
}

TEST(Pipeline, WhatCannotBeDivided) {
  JobMaker maker = FourBlocks();
  EXPECT_FALSE(AddPipeline(maker.job, maker.variant(), {.stages = 5}));
  EXPECT_FALSE(AddPipeline(maker.job, maker.variant(), {.stages = 2, .chunks = 3}));
  JobMaker loop = testing_job::TrainingLoop();
  EXPECT_FALSE(AddPipeline(loop.job, loop.variant(), {.stages = 2}));
}

TEST(Pipeline, WhatTheFlagMaySay) {
  EXPECT_EQ(ParsePipeline("4:16")->stages, 4);
  EXPECT_EQ(ParsePipeline("4:16")->micro_batches, 16);
  EXPECT_EQ(ParsePipeline("4:16:interleaved2")->chunks, 2);
  for (const char* text : {"4:16", "4:16:interleaved2"}) {
    EXPECT_EQ(PipelineText(*ParsePipeline(text)), text);
  }
  for (const char* bad : {"", "4", "4:", "1:4", "4:0", "4:16:", "4:16:interleaved",
                          "4:6:interleaved2", "4:16:interleaved1", "4:16x", "4x16"}) {
    EXPECT_FALSE(ParsePipeline(bad)) << bad;
  }
}

}  // namespace
}  // namespace plimsoll::pipeline_test

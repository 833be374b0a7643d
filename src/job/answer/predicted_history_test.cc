#include "job/answer/predicted_history.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "files/input.h"
#include "job/file/step_file.h"
#include "job/lowering/job_for_tests.h"
#include "job/parallel/fully_sharded.h"
#include "job/rules/calibration.h"

namespace plimsoll::predicted_history_test {
namespace {

using testing_job::AddConvolution;
using testing_job::Always;
using testing_job::JobMaker;
using testing_job::TrainingLoop;

Job ReadCaptured(const std::string& name) {
  const auto path = std::filesystem::path(PLIMSOLL_TEST_DATA) / "steps" / (name + ".step.json.gz");
  const Result<Input> input = Input::Open(path.string());
  EXPECT_TRUE(input.ok());
  Result<Job> job = ReadJob(*input);
  EXPECT_TRUE(job.ok());
  return *std::move(job);
}

History HistoryOf(const Job& job, const PredictOptions& options) {
  const Result<Setting> setting = MakeSetting(job, *FindGpu("H200"), options);
  EXPECT_TRUE(setting.ok()) << setting.error().ToLine();
  return PredictedHistory(Trial(*setting));
}

/// What is there at each position, out of things that come at `from` and go at `to`.
template <typename Things, typename From, typename To>
std::vector<Bytes> SumsOver(const History& h, const Things& things, From from, To to) {
  std::vector<Bytes> sums(h.times.size() + 1, 0);
  for (const auto& thing : things) {
    sums.at(static_cast<std::size_t>(from(thing))) += thing.size;
    if (to(thing) != kNotYet) sums.at(static_cast<std::size_t>(to(thing))) -= thing.size;
  }
  for (std::size_t i = 1; i < sums.size(); ++i) sums[i] += sums[i - 1];
  sums.pop_back();
  return sums;
}
std::vector<Bytes> Allocated(const History& h) {
  return SumsOver(
      h, h.blocks, [](const HistoryBlock& b) { return b.made; },
      [](const HistoryBlock& b) { return b.released; });
}
std::vector<Bytes> Reserved(const History& h) {
  return SumsOver(
      h, h.spans, [](const HistorySpan& s) { return s.from; },
      [](const HistorySpan& s) { return s.to; });
}
Position FirstPeak(const History& h) {
  const std::vector<Bytes> sums = Allocated(h);
  return static_cast<Position>(std::max_element(sums.begin(), sums.end()) - sums.begin());
}

/// Blocks lie in what is held, and apart from one another.
void ExpectPlaced(const History& h, Position at) {
  std::vector<HistoryBlock> blocks;
  for (const HistoryBlock& b : h.blocks) {
    if (b.made <= at && at < b.released) blocks.push_back(b);
  }
  std::sort(blocks.begin(), blocks.end(),
            [](const HistoryBlock& a, const HistoryBlock& b) { return a.address < b.address; });
  Address free_from = 0;
  for (const HistoryBlock& b : blocks) {
    const Address end = b.address + static_cast<Address>(b.size);
    EXPECT_LE(free_from, b.address);
    EXPECT_LE(b.requested, b.size);
    free_from = end;
    EXPECT_TRUE(std::any_of(h.spans.begin(), h.spans.end(), [&](const HistorySpan& s) {
      return s.from <= at && at < s.to && s.address <= b.address &&
             end <= s.address + static_cast<Address>(s.size);
    })) << "a block in no memory";
  }
}

void ExpectAccount(const History& h, const Prediction& p, Position at) {
  std::vector<Bytes> sums(h.categories.size(), 0);
  for (const HistoryBlock& b : h.blocks) {
    if (b.made <= at && at < b.released) sums.at(b.category) += b.requested;
  }
  for (std::size_t c = 0; c < sums.size(); ++c) {
    Bytes predicted = 0;
    for (const AccountLine& line : p.account) {
      if (AccountItemName(line.what) == h.categories[c]) predicted = line.bytes;
    }
    EXPECT_EQ(sums[c], predicted) << h.categories[c];
  }
}

void ExpectAgrees(const Job& job, const PredictOptions& options) {
  SCOPED_TRACE(job.model + " " + std::to_string(options.batch) + " " + options.conf);
  const History h = HistoryOf(job, options);
  const Result<Prediction> p = Predict(job, *FindGpu("H200"), options);
  ASSERT_TRUE(p.ok());
  const std::vector<Bytes> allocated = Allocated(h);
  const std::vector<Bytes> reserved = Reserved(h);
  EXPECT_EQ(*std::max_element(allocated.begin(), allocated.end()), p->trial.needs.allocated.best);
  EXPECT_EQ(*std::max_element(reserved.begin(), reserved.end()), p->trial.needs.reserved.best);
  const Position peak = FirstPeak(h);
  ExpectAccount(h, *p, peak);
  ExpectPlaced(h, peak);
  ExpectPlaced(h, static_cast<Position>(h.times.size() / 2));
}

/// "train.py:7 step / layer / aten.relu.default"
std::string StackOf(const History& h, std::uint32_t node) {
  std::string text;
  for (; node != 0; node = h.nodes.at(node).parent) {
    const HistoryNode& n = h.nodes[node];
    const std::string& function = h.names.at(n.function);
    const std::string frame =
        n.file == 0 ? function : fmt::format("{}:{} {}", h.names.at(n.file), n.line, function);
    text = text.empty() ? frame : fmt::format("{} / {}", frame, text);
  }
  return text;
}

TEST(PredictedHistory, AgreesWithThePrediction) {
  for (const char* name : {"mlp_adamw_fp32", "resnet18_adamw_amp_bf16", "gpt2_adamw_fp32"}) {
    const Job job = ReadCaptured(name);
    const std::shared_ptr<const Calibration> measured = Calibration::BuiltIn("H200");
    for (const std::int64_t batch : {3, 64}) {
      ExpectAgrees(job, {.batch = batch, .calibration = measured});
      ExpectAgrees(job,
                   {.batch = batch, .conf = "expandable_segments:True", .calibration = measured});
    }
    ExpectAgrees(job, {.batch = 8, .steps = 2, .torch = TorchVersion{2, 11}});
    ExpectAgrees(job, {.batch = 4000, .conf = "roundup_power2_divisions:4"});
  }
}

TEST(PredictedHistory, AgreesWhereSeveralStreamsAllocate) {
  Job job = ReadCaptured("gpt2_adamw_fp32");
  job.variants.front() = AddFullySharded(job, job.variants.front(), {.ranks = 4});
  for (const char* conf : {"", "expandable_segments:True"}) {
    const PredictOptions options{.batch = 4, .steps = 3, .conf = conf};
    ExpectAgrees(job, options);
    const History h = HistoryOf(job, options);
    EXPECT_TRUE(std::any_of(h.spans.begin(), h.spans.end(),
                            [](const HistorySpan& s) { return s.stream != 0; }));
  }
}

TEST(PredictedHistory, EventsAreTheRequestsInOrder) {
  const JobMaker maker = TrainingLoop();
  const History h = HistoryOf(maker.job, {.batch = 4});
  const Lowered lowered =
      Lower(maker.job, maker.job.variants.front(), *FindGpu("H200"), {.batch = 4});
  EXPECT_EQ(h.times, std::vector<TimeUs>(lowered.workload.requests.size(), 0));
  EXPECT_EQ(h.blocks.size(), lowered.blocks.size());
  EXPECT_TRUE(h.has_spans);
  EXPECT_TRUE(h.reserved.empty());
  EXPECT_TRUE(
      std::is_sorted(h.blocks.begin(), h.blocks.end(),
                     [](const HistoryBlock& a, const HistoryBlock& b) { return a.made < b.made; }));
  EXPECT_TRUE(
      std::is_sorted(h.spans.begin(), h.spans.end(),
                     [](const HistorySpan& a, const HistorySpan& b) { return a.from < b.from; }));
  for (const HistoryBlock& b : h.blocks) {
    EXPECT_LT(b.made, b.released);
    EXPECT_EQ(b.released, b.freed);
  }
}

TEST(PredictedHistory, CategoriesAreThePurposes) {
  const History h = HistoryOf(TrainingLoop().job, {});
  EXPECT_EQ(h.categories, (std::vector<std::string>{
                              "parameters", "gradients", "optimizer_state", "activations", "inputs",
                              "kv_cache", "temporaries", "workspaces", "kept", "unattributed"}));
  EXPECT_EQ(h.categories[h.blocks[0].category], "parameters");
  EXPECT_EQ(h.categories[h.blocks[1].category], "inputs");
  EXPECT_EQ(h.categories[h.blocks[2].category], "activations");
}

TEST(PredictedHistory, BlocksNameWhoMadeThem) {
  JobMaker maker;
  maker.Parameter(100);
  maker.variant().model_tensors.back().name = maker.job.strings.Intern("h.0.mlp.weight");
  maker.BeginStep();
  maker.Make("aten.relu.default", Always(1));
  maker.last_call().module = maker.job.strings.Intern("h.0.mlp");
  maker.Make("aten.mul.Tensor", Always(1));
  maker.last_call().where = {};
  maker.Make("aten.add.Tensor", Always(1));
  maker.last_call().where = maker.job.strings.Intern("somewhere: x in y");
  maker.last_call().module = {};
  const History h = HistoryOf(maker.job, {.steps = 1});
  ASSERT_EQ(h.blocks.size(), 4u);
  EXPECT_EQ(StackOf(h, h.blocks[0].node), "h / 0 / mlp / weight");
  EXPECT_EQ(h.names[h.blocks[0].place], "h.0.mlp.weight");
  EXPECT_EQ(h.names[h.blocks[0].module], "h.0.mlp");
  EXPECT_EQ(StackOf(h, h.blocks[1].node), "train.py:7 step / h / 0 / mlp / aten.relu.default");
  EXPECT_EQ(h.names[h.blocks[1].place], "train.py:7 in step");
  EXPECT_EQ(h.names[h.blocks[1].module], "h.0.mlp");
  EXPECT_EQ(StackOf(h, h.blocks[2].node), "layer / aten.mul.Tensor");
  EXPECT_EQ(h.names[h.blocks[2].place], "aten.mul.Tensor");
  EXPECT_EQ(StackOf(h, h.blocks[3].node), "somewhere: x in y / aten.add.Tensor");
  EXPECT_EQ(h.names[h.blocks[3].module], "");
}

TEST(PredictedHistory, WhatIsBorrowedIsThereForOneEvent) {
  JobMaker maker;
  maker.BeginStep();
  maker.Begin(Stage::kForward);
  AddConvolution(maker);
  const Storage last = maker.Make("aten.relu.default", Always(1));
  maker.Free(last);
  const History h = HistoryOf(maker.job, {.batch = 128, .steps = 1});
  const auto borrowed = std::find_if(h.blocks.begin(), h.blocks.end(), [](const HistoryBlock& b) {
    return b.released == b.made + 1;
  });
  ASSERT_NE(borrowed, h.blocks.end());
  EXPECT_EQ(h.categories[borrowed->category], "temporaries");
  ExpectAgrees(maker.job, {.batch = 128, .steps = 1});
}

TEST(PredictedHistory, MarksAreStepsAndTheirPhases) {
  const History h = HistoryOf(TrainingLoop().job, {.batch = 4, .steps = 4});
  const auto count = [&](Stage kind) {
    return std::count_if(h.marks.begin(), h.marks.end(),
                         [&](const HistoryMark& m) { return m.stage == kind; });
  };
  EXPECT_EQ(count(Stage::kStep), 4);
  EXPECT_EQ(count(Stage::kForward), 4);
  EXPECT_EQ(count(Stage::kBackward), 4);
  EXPECT_EQ(count(Stage::kOptimizer), 4);
  // The parameter comes before the first step; the last one ends the run.
  EXPECT_EQ(h.marks[0].first, 1);
  EXPECT_EQ(h.marks[3].last, static_cast<Position>(h.times.size()) - 1);
  for (std::size_t i = 4; i < h.marks.size(); ++i) {
    const HistoryMark& step = h.marks.at(static_cast<std::size_t>(h.marks[i].step) - 1);
    EXPECT_LE(step.first, h.marks[i].first);
    EXPECT_LE(h.marks[i].first, h.marks[i].last);
    EXPECT_LE(h.marks[i].last, step.last);
  }
}

TEST(PredictedHistory, StretchesAreTheStagesOfTheLife) {
  JobMaker maker = TrainingLoop();
  maker.BeginPart({.stage = Stage::kEvaluation});
  maker.Make("aten.relu.default", testing_job::Each(100));
  maker.BeginPart({.stage = Stage::kLoad});
  maker.Make("aten.relu.default", testing_job::Each(1000));
  const History h = HistoryOf(maker.job, {.batch = 4, .steps = 4});
  const std::vector<Stage> stages = {Stage::kBuild, Stage::kStep, Stage::kEvaluation, Stage::kLoad};
  ASSERT_EQ(h.stretches.size(), stages.size());
  Position next = 0;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    EXPECT_EQ(h.stretches[i].stage, stages[i]);
    EXPECT_EQ(h.stretches[i].part, i);
    EXPECT_EQ(h.stretches[i].first, next);
    next = h.stretches[i].last + 1;
  }
  EXPECT_EQ(next, static_cast<Position>(h.times.size()));
  // The last step ends with the steps, and not with the life.
  EXPECT_EQ(h.marks[3].last, h.stretches[1].last);
}

TEST(PredictedHistory, AbsurdBatchesAreTakenToo) {
  JobMaker maker = TrainingLoop();
  for (int i = 0; i < 200; ++i) {
    maker.Make("aten.relu.default", testing_job::Each(std::int64_t{1} << 45));
  }
  for (const char* conf : {"", "expandable_segments:True"}) {
    EXPECT_FALSE(HistoryOf(maker.job, {.batch = 1 << 24, .conf = conf}).blocks.empty());
  }
}

}  // namespace
}  // namespace plimsoll::predicted_history_test

#include "job/file/from_traces.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "allocator/replay/model_for_tests.h"
#include "job/file/at_length.h"
#include "job/lowering/job_for_tests.h"
#include "job/lowering/lower.h"

namespace plimsoll::from_traces_test {
namespace {

using testing_job::RequestsOf;

/// A run as a snapshot shows it: allocations by the line that made each.
class FakeRun {
 public:
  std::size_t Allocate(int line, Bytes size) {
    const Address address = 0x7000000000 + static_cast<Address>(made_.size()) * 0x10000000;
    made_.push_back({address, size});
    Write(Action::kAlloc, made_.size() - 1, line);
    return made_.size() - 1;
  }
  void Free(std::size_t which) {
    Write(Action::kFreeRequested, which, 0);
    Write(Action::kFreeCompleted, which, 0);
  }
  RecordedRun Finish(std::int64_t batch) {
    ledger_ = Follow(timeline_);
    return {.file = "b" + std::to_string(batch) + ".pickle",
            .timeline = &timeline_,
            .ledger = &ledger_,
            .batch = batch};
  }

 private:
  void Write(Action action, std::size_t which, int line) {
    StackTable& s = timeline_.stacks;
    const FrameId frame =
        s.AddFrame({s.strings.Intern("step"), s.strings.Intern("train.py"), line});
    timeline_.events.push_back({.address = made_[which].first,
                                .size = made_[which].second,
                                .stack = s.AddStack(std::vector<FrameId>{frame}),
                                .action = action});
  }

  Timeline timeline_{.streams = {0}};
  Ledger ledger_;
  std::vector<std::pair<Address, Bytes>> made_;
};

/// Ten lines, each of which allocates 1000 bytes for each of the batch and 500 besides; the third
/// is freed at the end. One run takes a workspace that the other does not.
FakeRun OneStep(std::int64_t batch, bool workspace) {
  FakeRun run;
  std::vector<std::size_t> made;
  for (int line = 1; line <= 10; ++line) {
    made.push_back(run.Allocate(line, 1000 * batch + 500));
    if (workspace && line == 5) run.Free(run.Allocate(100, 7777));
  }
  run.Free(made[2]);
  return run;
}

std::string At(const Job& job, std::int64_t batch) {
  return RequestsOf(Lower(job, job.variants.front(), *FindGpu("H200"), {.batch = batch}));
}

TEST(JobFromTraces, EverySizeBecomesAFunctionOfTheBatch) {
  FakeRun small = OneStep(2, false);
  FakeRun large = OneStep(6, false);
  const Result<Job> job = JobFromTraces(small.Finish(2), large.Finish(6));
  ASSERT_TRUE(job.ok()) << job.error().ToLine();
  EXPECT_TRUE(job->notes.empty());
  std::string expected;
  for (int i = 0; i < 10; ++i) expected += "+10500 ";
  EXPECT_EQ(At(*job, 10), expected + "-10500");
  EXPECT_EQ(job->batches[0], 2);
  EXPECT_EQ(job->batches[1], 6);
}

TEST(JobFromTraces, WhatOnlyTheLargerRunHasIsTakenAsItIs) {
  FakeRun small = OneStep(2, false);
  FakeRun large = OneStep(6, true);
  const Result<Job> job = JobFromTraces(small.Finish(2), large.Finish(6));
  ASSERT_TRUE(job.ok()) << job.error().ToLine();
  ASSERT_EQ(job->notes.size(), 1u);
  EXPECT_TRUE(job->notes[0].starts_with("1 allocations are in b6.pickle")) << job->notes[0];
  const std::string at = At(*job, 10);
  EXPECT_NE(at.find("+7777 -7777"), std::string::npos) << at;
  EXPECT_EQ(std::count(at.begin(), at.end(), '+'), 11);
  EXPECT_EQ(at.find("6500"), std::string::npos) << "the others still have their counterparts";
}

TEST(JobFromTraces, WhatOnlyTheSmallerRunHasIsPassedOver) {
  FakeRun small = OneStep(2, true);
  FakeRun large = OneStep(6, false);
  const Result<Job> job = JobFromTraces(small.Finish(2), large.Finish(6));
  ASSERT_TRUE(job.ok()) << job.error().ToLine();
  EXPECT_EQ(At(*job, 2).find("7777"), std::string::npos);
  EXPECT_EQ(At(*job, 2).substr(0, 5), "+2500");
}

TEST(JobFromTraces, RunsOfDifferentJobsAreRefused) {
  FakeRun small;
  for (int line = 1; line <= 10; ++line) small.Allocate(line < 8 ? line : 100 + line, 1000);
  FakeRun large = OneStep(6, false);
  const Result<Job> job = JobFromTraces(small.Finish(2), large.Finish(6));
  ASSERT_FALSE(job.ok());
  EXPECT_NE(job.error().message.find("3 of 10 allocations have no counterpart"), std::string::npos)
      << job.error().ToLine();
  EXPECT_EQ(job.error().file, "b6.pickle");
}

TEST(JobFromTraces, NothingIsNoJob) {
  FakeRun small, large;
  EXPECT_FALSE(JobFromTraces(small.Finish(2), large.Finish(6)).ok());
}

TEST(JobFromTraces, TheSecondRunNeedsTheLargerBatch) {
  for (const auto& [a, b] : {std::pair{6, 2}, {2, 2}, {0, 2}}) {
    FakeRun small = OneStep(a, false);
    FakeRun large = OneStep(b, false);
    EXPECT_FALSE(JobFromTraces(small.Finish(a), large.Finish(b)).ok()) << a << " and " << b;
  }
}

/// What was there before the records began has no counterpart, and stays as it is.
TEST(JobFromTraces, EarlierBlocksAreIndependentOfTheBatch) {
  const auto record = [](std::int64_t batch) {
    testing_model::Recorder recorder({});
    const auto earlier = recorder.Allocate(5000);
    const std::size_t cut = recorder.events();
    recorder.Allocate(1000 * batch);
    recorder.Free(earlier);
    Timeline timeline = recorder.Finish();
    testing_model::CutBefore(timeline, cut);
    return timeline;
  };
  const Timeline small = record(2);
  const Timeline large = record(6);
  const Ledger small_ledger = Follow(small);
  const Ledger large_ledger = Follow(large);
  const Result<Job> job =
      JobFromTraces({.file = "b2", .timeline = &small, .ledger = &small_ledger, .batch = 2},
                    {.file = "b6", .timeline = &large, .ledger = &large_ledger, .batch = 6});
  ASSERT_TRUE(job.ok()) << job.error().ToLine();
  EXPECT_EQ(At(*job, 10), "+5000 +10000 -5000");
}

/// A run of a transformer: weights, what goes with batch and length, scores that go with the square
/// of the length, and, where a library takes one, a workspace in the backward, which has no stack.
FakeRun OneStepAt(std::int64_t batch, std::int64_t length, bool workspace = false) {
  FakeRun run;
  run.Allocate(1, 5'000'000);
  const std::size_t hidden = run.Allocate(2, 1000 * batch * length + 512);
  const std::size_t scores = run.Allocate(3, 16 * batch * length * length);
  run.Allocate(4, 8 * length);
  if (workspace) run.Free(run.Allocate(0, 8 * batch * length));
  run.Allocate(0, 5'000'000);
  run.Allocate(0, 1000 * batch * length);
  run.Allocate(0, 64 * batch);
  run.Free(scores);
  run.Free(hidden);
  for (int line = 5; line < 9; ++line) run.Allocate(line, 2000);
  return run;
}

struct Point {
  std::int64_t batch = 0;
  std::int64_t length = 0;
  bool workspace = false;
};

std::vector<FakeRun> RunsAt(const std::vector<Point>& points) {
  std::vector<FakeRun> runs;
  for (const Point& point : points) {
    runs.push_back(OneStepAt(point.batch, point.length, point.workspace));
  }
  return runs;
}

Result<Job> JobOf(std::vector<FakeRun>& runs, const std::vector<Point>& points) {
  std::vector<RecordedRun> recorded;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    recorded.push_back(runs[i].Finish(points[i].batch));
    recorded.back().length = points[i].length;
  }
  return JobFromTraces(recorded);
}

Result<Job> JobAt(const std::vector<Point>& points) {
  std::vector<FakeRun> runs = RunsAt(points);
  return JobOf(runs, points);
}

/// What a run itself asks for.
std::string RecordedAt(const Point& point) {
  FakeRun run = OneStepAt(point.batch, point.length, point.workspace);
  const RecordedRun recorded = run.Finish(point.batch);
  std::string text;
  for (const Event& event : recorded.timeline->events) {
    if (event.action == Action::kFreeRequested) continue;
    text += (text.empty() ? "" : " ");
    text += (event.action == Action::kAlloc ? "+" : "-") + std::to_string(event.size);
  }
  return text;
}

TEST(JobFromPoints, EverySizeBecomesAFunctionOfBatchAndLength) {
  const Result<Job> job = JobAt({{2, 256}, {4, 256}, {2, 512}, {4, 512}, {2, 1024}});
  ASSERT_TRUE(job.ok()) << job.error().ToLine();
  EXPECT_TRUE(job->notes.empty()) << job->notes.front();
  EXPECT_TRUE(IsRecorded(*job));
  EXPECT_TRUE(HasLength(*job));
  EXPECT_FALSE(OnlyBatch(*job));
  EXPECT_EQ(CapturedLengths(*job), (std::vector<std::int64_t>{256, 512, 1024}));
  EXPECT_EQ(job->batches[0], 2);
  EXPECT_EQ(job->batches[1], 4);
  for (const Point& asked : {Point{3, 768}, {8, 128}, {1, 4096}, {4, 512}}) {
    EXPECT_EQ(At(AtLength(*job, asked.length).job, asked.batch), RecordedAt(asked))
        << asked.batch << "x" << asked.length;
  }
}

TEST(JobFromPoints, ThreePointsTellProductsAndSquares) {
  const Result<Job> job = JobAt({{4, 512}, {4, 1024}, {5, 640}});
  ASSERT_TRUE(job.ok()) << job.error().ToLine();
  EXPECT_EQ(At(AtLength(*job, 768).job, 6), RecordedAt({6, 768}));
}

TEST(JobFromPoints, OneBatchLeavesTheLengthToChoose) {
  const Result<Job> job = JobAt({{4, 256}, {4, 512}, {4, 1024}});
  ASSERT_TRUE(job.ok()) << job.error().ToLine();
  EXPECT_TRUE(job->notes.empty()) << job->notes.front();
  EXPECT_EQ(OnlyBatch(*job), 4);
  EXPECT_EQ(job->batches[1], 5);
  EXPECT_EQ(At(AtLength(*job, 768).job, 4), RecordedAt({4, 768}));
  EXPECT_EQ(OnlyBatch(AtLength(*job, 768).job), 4) << "put at a length, it is still so";
}

/// Without stacks in the backward the order alone would take the workspace for the gradient.
TEST(JobFromPoints, WhatSomeRecordsLackGoesWithTheProductThatTheOthersTell) {
  const Result<Job> job = JobAt({{2, 256, false}, {4, 256, true}, {2, 512, true}, {4, 512, true}});
  ASSERT_TRUE(job.ok()) << job.error().ToLine();
  ASSERT_EQ(job->notes.size(), 1u);
  EXPECT_TRUE(job->notes[0].starts_with("1 allocations of b4.pickle are not in every other"))
      << job->notes[0];
  EXPECT_EQ(At(AtLength(*job, 768).job, 6), RecordedAt({6, 768, true}));
}

TEST(JobFromPoints, WhatOneRecordAloneHasIsTakenAsItIs) {
  const Result<Job> job =
      JobAt({{2, 256, false}, {4, 256, false}, {2, 512, false}, {4, 512, true}});
  ASSERT_TRUE(job.ok()) << job.error().ToLine();
  EXPECT_EQ(job->notes.size(), 1u);
  const std::string at = At(AtLength(*job, 768).job, 6);
  EXPECT_NE(at.find("+16384 -16384"), std::string::npos) << at;
}

TEST(JobFromPoints, TheStepIsThatOfTheLargestWhereverItStands) {
  const Result<Job> job = JobAt({{4, 512, true}, {2, 256, false}, {4, 256, false}});
  ASSERT_TRUE(job.ok()) << job.error().ToLine();
  EXPECT_EQ(At(AtLength(*job, 512).job, 4), RecordedAt({4, 512, true}));
}

TEST(JobFromPoints, BatchAndLengthThatGrowTogetherAreRemarkedUpon) {
  const Result<Job> job = JobAt({{1, 256}, {2, 512}, {4, 1024}});
  ASSERT_TRUE(job.ok()) << job.error().ToLine();
  ASSERT_FALSE(job->notes.empty());
  EXPECT_TRUE(job->notes.back().starts_with("batch and length grow together"));
}

TEST(JobFromPoints, PointsThatTellNothingAreRefused) {
  for (const std::vector<Point>& points : {std::vector<Point>{},
                                           {{2, 256}, {2, 512}},
                                           {{2, 256}, {4, 512}, {2, 256}},
                                           {{2, 256}, {4, 256}, {8, 256}},
                                           {{2, 256}, {4, 256}, {2, 0}},
                                           {{2, 256}, {4, 256}, {2, Forms::kLargestExtent + 1}}}) {
    std::vector<FakeRun> runs = RunsAt(std::vector<Point>(points.size(), Point{2, 256}));
    const Result<Job> job = JobOf(runs, points);
    ASSERT_FALSE(job.ok()) << points.size() << " points";
    EXPECT_FALSE(job.error().hint.empty());
  }
}

TEST(JobFromPoints, PointsInAnotherOrderThanTheFilesAreRefused) {
  std::vector<FakeRun> runs = RunsAt({{4, 512}, {4, 1024}, {5, 640}});
  EXPECT_FALSE(JobOf(runs, {{4, 1024}, {4, 512}, {5, 640}}).ok());
  std::vector<FakeRun> wrong = RunsAt({{4, 512}, {4, 1024}, {5, 640}});
  const Result<Job> job = JobOf(wrong, {{4, 512}, {4, 1024}, {4, 640}});
  ASSERT_FALSE(job.ok());
  EXPECT_NE(job.error().message.find("are no sum of batch, length"), std::string::npos)
      << job.error().ToLine();
}

TEST(JobFromPoints, RunsOfDifferentJobsAreRefused) {
  std::vector<FakeRun> runs = RunsAt({{2, 256}, {4, 256}});
  runs.push_back(OneStep(6, false));
  EXPECT_FALSE(JobOf(runs, {{2, 256}, {4, 256}, {2, 512}}).ok());
  std::vector<FakeRun> empty(3);
  EXPECT_FALSE(JobOf(empty, {{2, 256}, {4, 256}, {2, 512}}).ok());
}

TEST(JobFromTraces, PlacesAndPurposesComeAlong) {
  FakeRun small = OneStep(2, false);
  FakeRun large = OneStep(6, false);
  RecordedRun recorded = large.Finish(6);
  recorded.where.assign(10, "train.py:5");
  recorded.category.assign(10, Category::kGradients);
  const Result<Job> job = JobFromTraces(small.Finish(2), recorded);
  ASSERT_TRUE(job.ok());
  const Lowered lowered = Lower(*job, job->variants.front(), *FindGpu("H200"), {.batch = 4});
  EXPECT_EQ(lowered.blocks.front().category, Category::kGradients);
  const CallRecord& call = job->variants.front().calls[lowered.blocks.front().call];
  EXPECT_EQ(job->strings[call.where], "train.py:5");
}

}  // namespace
}  // namespace plimsoll::from_traces_test

// What is said of a step of which only the first micro-batches are written out, against the same
// with each of them written.
#include <gtest/gtest.h>

#include <string>

#include "files/input.h"
#include "job/file/step_file.h"
#include "job/rules/calibration.h"
#include "job/transforms/accumulate.h"
#include "job/transforms/resplit.h"
#include "job/trial/trial.h"

namespace plimsoll::repeated_micro_batches_test {
namespace {

constexpr int kMicroBatches = 24;

struct TrainedRun {
  std::string job;
  std::string gpu = "H200";
  PredictOptions options = {};
  int micro_batches = kMicroBatches;
  /// Whether the script accumulates, over so many micro-batches.
  int captured = 1;
};

Job ReadCaptured(const std::string& name) {
  return *ReadJob(*Input::Open(PLIMSOLL_TEST_DATA "/steps/" + name + ".step.json.gz"));
}

Trial TrialOf(const TrainedRun& run, std::size_t most_events) {
  Job job = ReadCaptured(run.job);
  Variant& variant = job.variants.front();
  if (run.captured > 1) {
    variant = AddAccumulation(job, variant, run.captured);
    EXPECT_EQ(CannotResplit(job, variant), std::nullopt);
    variant = Resplit(job, variant, run.micro_batches, most_events);
  } else {
    variant = AddAccumulation(job, variant, run.micro_batches, most_events);
  }
  PredictOptions options = run.options;
  options.calibration = Calibration::BuiltIn(run.gpu);
  Result<Setting> setting = MakeSetting(job, *FindGpu(run.gpu), options);
  EXPECT_TRUE(setting.ok()) << setting.error().ToLine();
  return Trial(std::move(*setting));
}

void ExpectSame(const Peaks& repeated, const Peaks& written) {
  EXPECT_EQ(repeated.allocated, written.allocated);
  EXPECT_EQ(repeated.reserved, written.reserved);
  EXPECT_EQ(repeated.settled, written.settled);
  EXPECT_EQ(repeated.fits, written.fits);
  EXPECT_EQ(repeated.refused, written.refused);
  EXPECT_EQ(repeated.reserved_after_step, written.reserved_after_step);
  ASSERT_EQ(repeated.parts.size(), written.parts.size());
  for (std::size_t i = 0; i < written.parts.size(); ++i) {
    EXPECT_EQ(repeated.parts[i].allocated, written.parts[i].allocated) << i;
    EXPECT_EQ(repeated.parts[i].reserved, written.parts[i].reserved) << i;
  }
}

void ExpectSame(const TrainedRun& run) {
  SCOPED_TRACE(testing::Message() << run.job << " " << run.options.conf << " of "
                                  << run.micro_batches << " from " << run.captured);
  const Trial repeated = TrialOf(run, 0);
  const Trial written = TrialOf(run, kMostEventsWritten);
  EXPECT_EQ(repeated.setting().job->notes.size(), written.setting().job->notes.size() + 1);
  EXPECT_EQ(repeated.lowered().not_repeated, 0);
  EXPECT_FALSE(repeated.lowered().workload.repeats.empty());
  EXPECT_LT(repeated.lowered().blocks.size(), written.lowered().blocks.size());
  ExpectSame(repeated.unlimited(), written.unlimited());
  ExpectSame(repeated.decided(), written.decided());
  const TrialResult shown = repeated.WithRanges();
  const TrialResult expected = written.WithRanges();
  EXPECT_EQ(shown.needs.device.low, expected.needs.device.low);
  EXPECT_EQ(shown.needs.device.high, expected.needs.device.high);
  EXPECT_EQ(shown.surely_fits, expected.surely_fits);
  EXPECT_EQ(shown.workspaces_refused, expected.workspaces_refused);
  EXPECT_EQ(shown.refused_in_a_step, expected.refused_in_a_step);
  EXPECT_NEAR(shown.step_us, expected.step_us, 1e-3 * expected.step_us);
  EXPECT_NEAR(shown.gpu_busy_us, expected.gpu_busy_us, 1e-6 * expected.gpu_busy_us);
}

class RepeatedMicroBatches : public testing::TestWithParam<const char*> {};

TEST_P(RepeatedMicroBatches, TakeWhatWrittenOnesTake) {
  ExpectSame({.job = GetParam(), .options = {.batch = 8}});
}

TEST_P(RepeatedMicroBatches, HoweverManyThereAre) {
  for (const int micro_batches : {8, 16}) {
    ExpectSame({.job = GetParam(), .options = {.batch = 4}, .micro_batches = micro_batches});
  }
}

/// None of so few is left to be repeated.
TEST_P(RepeatedMicroBatches, OfFewEachIsWritten) {
  const TrainedRun run{.job = GetParam(), .options = {.batch = 4}, .micro_batches = 4};
  const Trial repeated = TrialOf(run, 0);
  const Trial written = TrialOf(run, kMostEventsWritten);
  ExpectSame(repeated.decided(), written.decided());
  EXPECT_EQ(repeated.Best().step_us, written.Best().step_us);
}

/// Over three: of two the second does not tell what it frees of the one before it.
TEST_P(RepeatedMicroBatches, OfAScriptThatAccumulates) {
  for (const int micro_batches : {8, 16}) {
    ExpectSame({.job = GetParam(),
                .options = {.batch = 4},
                .micro_batches = micro_batches,
                .captured = 3});
  }
}

TEST_P(RepeatedMicroBatches, InReleasesThatBreakTiesOtherwise) {
  for (const TorchVersion torch : {TorchVersion{2, 11}, TorchVersion{2, 12}, TorchVersion{2, 13}}) {
    ExpectSame({.job = GetParam(), .options = {.batch = 4, .torch = torch}});
  }
}

TEST_P(RepeatedMicroBatches, UnderSettingsOfTheAllocator) {
  for (const char* conf :
       {"expandable_segments:True", "max_split_size_mb:64", "garbage_collection_threshold:0.6"}) {
    ExpectSame({.job = GetParam(), .options = {.batch = 4, .conf = conf, .limit = 2 * kGiB}});
  }
}

/// With room for less and less, workspaces are refused and memory goes back to the driver.
TEST_P(RepeatedMicroBatches, WhereMemoryIsShort) {
  const Bytes all = TrialOf({.job = GetParam(), .options = {.batch = 8}}, 0).unlimited().reserved;
  for (const Bytes limit : {all, all * 9 / 10, all * 7 / 10, all / 2}) {
    ExpectSame({.job = GetParam(), .options = {.batch = 8, .limit = limit}});
  }
}

INSTANTIATE_TEST_SUITE_P(Jobs, RepeatedMicroBatches,
                         testing::Values("gpt2_adamw_fp32", "mlp_adamw_fp32",
                                         "resnet18_adamw_amp_bf16", "vgg16_sgdm"));

}  // namespace
}  // namespace plimsoll::repeated_micro_batches_test

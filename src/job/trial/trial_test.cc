#include "job/trial/trial.h"

#include <gtest/gtest.h>

#include "job/lowering/job_for_tests.h"

namespace plimsoll::trial_test {
namespace {

using testing_job::Always;
using testing_job::JobMaker;
using testing_job::kMiBOfFloats;

/// Two tensors one after the other, of so many MiB.
JobMaker TwoInARow(std::int64_t first, std::int64_t second) {
  JobMaker maker;
  for (int step = 0; step < 3; ++step) {
    maker.BeginStep();
    maker.Begin(Stage::kForward);
    maker.Free(maker.Make("aten.relu.default", Always(first * kMiBOfFloats)));
    maker.Free(maker.Make("aten.relu.default", Always(second * kMiBOfFloats)));
  }
  return maker;
}

TrialResult Within(const JobMaker& maker, Bytes limit, const char* conf) {
  const Result<Setting> setting =
      MakeSetting(maker.job, *FindGpu("H200"), {.conf = conf, .limit = limit});
  EXPECT_TRUE(setting.ok()) << setting.error().ToLine();
  return Trial::Of(*setting)->WithRanges();
}

/// PyTorch compares the whole of a request with the limit, though a part of it is mapped already.
TEST(Trial, WithExpandableSegmentsALimitIsMetByWhatStaysBelowIt) {
  const char* const expandable = "expandable_segments:True";
  const TrialResult free = Within(TwoInARow(60, 80), 150 * kMiB, expandable);
  EXPECT_EQ(free.unlimited.reserved.best, 80 * kMiB);
  EXPECT_TRUE(free.surely_fits);
  EXPECT_TRUE(free.KeepsItsCache());
  const TrialResult tight = Within(TwoInARow(60, 80), 120 * kMiB, expandable);
  EXPECT_EQ(tight.unlimited.reserved.best, 80 * kMiB);
  EXPECT_TRUE(tight.surely_fits);
  EXPECT_FALSE(tight.KeepsItsCache()) << "60 are held and 80 asked for";
  EXPECT_TRUE(Within(TwoInARow(80, 60), 120 * kMiB, "").KeepsItsCache());
}

}  // namespace
}  // namespace plimsoll::trial_test

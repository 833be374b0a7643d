#include "job/answer/verdict.h"

#include <gtest/gtest.h>

#include "job/lowering/job_for_tests.h"
#include "job/rules/testing.h"

namespace plimsoll::verdict_test {
namespace {

using testing_job::Each;
using testing_job::JobMaker;
using testing_job::kMiBOfFloats;
using testing_job::WithRoom;

/// 40 MiB of parameters, and 8 MiB for each of the batch in the forward: 72 MiB at a batch of 4.
JobMaker Simple() {
  JobMaker maker;
  maker.Parameter(40 * kMiBOfFloats);
  for (int i = 0; i < 3; ++i) {
    maker.BeginStep();
    maker.Begin(Stage::kForward);
    const Storage a = maker.Make("aten.relu.default", Each(8 * kMiBOfFloats));
    maker.Begin(Stage::kBackward);
    maker.Free(a);
  }
  return maker;
}

Prediction WithLimit(Bytes limit, const JobMaker& maker = Simple()) {
  return *Predict(maker.job, WithRoom(kGiB), {.batch = 4, .limit = limit});
}

TEST(Verdict, FollowsTheRangeOfTheFigure) {
  EXPECT_EQ(VerdictOf(WithLimit(80 * kMiB)).decision, FitDecision::kFits);
  EXPECT_EQ(VerdictOf(WithLimit(60 * kMiB)).decision, FitDecision::kDoesNotFit);
  for (const Bytes limit : {72 * kMiB - kMiB / 2, 72 * kMiB}) {
    const FitVerdict verdict = VerdictOf(WithLimit(limit));
    EXPECT_EQ(verdict.decision, FitDecision::kUnknown) << limit;
    ASSERT_EQ(verdict.unknown.size(), 1U);
    EXPECT_TRUE(verdict.unknown.front().file.empty());
  }
}

TEST(Verdict, NamesTheLineThatWasNotFollowed) {
  JobMaker maker = Simple();
  maker.job.not_followed = {
      {.what = "`if step == 10:` was not reached", .file = "a.py", .line = 7}};
  const FitVerdict verdict = VerdictOf(WithLimit(80 * kMiB, maker));
  EXPECT_EQ(verdict.decision, FitDecision::kUnknown);
  ASSERT_EQ(verdict.unknown.size(), 1U);
  EXPECT_EQ(verdict.unknown.front().line, 7);
  EXPECT_EQ(VerdictOf(WithLimit(60 * kMiB, maker)).decision, FitDecision::kDoesNotFit)
      << "what was followed does not fit";
}

TEST(Verdict, IsUnknownWhereTheDataDecideSizes) {
  JobMaker maker = Simple();
  maker.job.sizes_change = true;
  EXPECT_EQ(VerdictOf(WithLimit(80 * kMiB, maker)).decision, FitDecision::kUnknown);
}

}  // namespace
}  // namespace plimsoll::verdict_test

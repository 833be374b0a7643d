// Of a step that is too long to scan: what is found is tested, as a scan finds it.
#include "job/answer/long_search.h"

#include <gtest/gtest.h>

#include "job/lowering/job_for_tests.h"

namespace plimsoll::long_search_test {
namespace {

using testing_job::Each;
using testing_job::JobMaker;
using testing_job::kMiBOfFloats;
using testing_job::WithRoom;

/// `fixed` MiB of parameters and `each` MiB for every sample.
std::shared_ptr<const Job> StepOf(std::int64_t fixed, std::int64_t each) {
  JobMaker maker;
  maker.Parameter(fixed * kMiBOfFloats);
  for (int i = 0; i < 3; ++i) {
    maker.BeginStep();
    maker.Begin(Stage::kForward);
    const Storage a = maker.Make("aten.relu.default", Each(each * kMiBOfFloats));
    maker.Begin(Stage::kBackward);
    maker.Free(a);
  }
  return std::make_shared<const Job>(std::move(maker.job));
}

RankSet RanksOf(const JobForms& forms, Bytes room) {
  return *RankSet::Of(forms, WithRoom(room), {});
}

void ExpectTested(const RankSet& ranks) {
  const MaxBatch found = FindMaxBatchOfLongStep(ranks);
  const MaxBatch scanned = FindMaxBatch(ranks);
  for (const std::string& broken : BrokenInvariants(found)) ADD_FAILURE() << broken;
  EXPECT_LE(found.most.batch, scanned.most.batch);
  EXPECT_GE(double(found.most.batch), 0.9 * double(scanned.most.batch) - 1);
  EXPECT_GE(double(found.sure.batch), 0.4 * double(scanned.sure.batch) - 1);
  if (found.most.batch > 0) {
    EXPECT_TRUE(RankTrials(ranks.WithBatch(found.most.batch)).MayFit());
  }
  if (found.sure.batch > 0) {
    EXPECT_TRUE(RankTrials(ranks.WithBatch(found.sure.batch)).SurelyFit());
  }
  if (found.untried_below > 0) {
    EXPECT_FALSE(RankTrials(ranks.WithBatch(found.untried_below)).MayFit());
  }
}

TEST(LongSearch, FindsWhatAScanFinds) {
  for (const Bytes room : {50 * kMiB, 100 * kMiB, 200 * kMiB, kGiB, 30 * kGiB}) {
    ExpectTested(RanksOf(StepOf(40, 8), room));
  }
}

TEST(LongSearch, OfSeveralStagesTheOneThatEndsFirstDecides) {
  JobForms forms(StepOf(200, 8));
  forms.jobs.push_back(StepOf(40, 28));
  for (const Bytes room : {300 * kMiB, 500 * kMiB, 8 * kGiB}) ExpectTested(RanksOf(forms, room));
}

TEST(LongSearch, NothingFits) {
  EXPECT_EQ(FindMaxBatchOfLongStep(RanksOf(StepOf(40, 8), 20 * kMiB)).most.batch, 0);
}

TEST(LongSearch, EndsWhereNothingDependsOnTheBatch) {
  JobMaker maker;
  maker.Parameter(100);
  const auto job = std::make_shared<const Job>(std::move(maker.job));
  EXPECT_EQ(FindMaxBatchOfLongStep(RanksOf(job, kGiB)).most.batch, kLargestBatch);
}

}  // namespace
}  // namespace plimsoll::long_search_test

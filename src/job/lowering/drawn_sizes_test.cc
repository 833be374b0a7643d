#include "job/lowering/drawn_sizes.h"

#include <gtest/gtest.h>

#include "job/lowering/job_for_tests.h"
#include "job/rules/testing.h"
#include "job/trial/trial.h"

namespace plimsoll::drawn_sizes_test {
namespace {

using testing_job::Always;
using testing_job::Each;
using testing_job::JobMaker;
using testing_job::kMiBOfFloats;
using testing_job::RequestsOf;

/// Each step gives a share of its rows to an expert.
JobMaker Routed() {
  JobMaker maker;
  for (int step = 0; step < 3; ++step) {
    maker.BeginStep();
    const Storage chosen = maker.Make("aten.nonzero.default", Each(25));
    const Storage inside = maker.Make("aten.mul.Tensor", {Each(25), Always(kMiBOfFloats)});
    const Storage whole = maker.Make("aten.relu.default", {Each(100), Always(kMiBOfFloats / 4)});
    maker.Free(inside);
    maker.Free(chosen);
    maker.Free(whole);
  }
  return maker;
}

std::string Requests(const JobMaker& maker, int draw) {
  return RequestsOf(Lower(maker.job, maker.job.variants.front(), *FindGpu("H200"),
                          {.batch = 2, .steps = 5, .draw = draw}));
}

TEST(DrawnSizes, OnlyWhatValuesDecideIsDrawn) {
  JobMaker maker = Routed();
  EXPECT_EQ(Requests(maker, 1), Requests(maker, 0)) << "nobody says that values decide";
  maker.job.selected_at = {"train.py:7 in step"};
  EXPECT_EQ(Requests(maker, 1), Requests(maker, 1)) << "the same in every run";
  EXPECT_NE(Requests(maker, 1), Requests(maker, 0));
  EXPECT_NE(Requests(maker, 1), Requests(maker, 2));
  const std::string whole = "+" + std::to_string(200 * kMiB / 4);
  EXPECT_NE(Requests(maker, 1).find(whole), std::string::npos) << "the whole batch is what it is";
}

TEST(DrawnSizes, ARangeHasWhatOtherSharesLeaveReserved) {
  JobMaker maker = Routed();
  const auto reserved = [&] {
    const auto setting = MakeSetting(maker.job, *FindGpu("H200"), {.batch = 2});
    return Trial(*setting).WithRanges().needs.reserved;
  };
  const Range alike = reserved();
  maker.job.selected_at = {"train.py:7 in step"};
  const Range drawn = reserved();
  EXPECT_EQ(drawn.best, alike.best);
  EXPECT_GT(drawn.high, alike.high + 10 * kMiB);
}

TEST(DrawnSizes, AWorkspaceIsDrawnToTheBlock) {
  const JobMaker maker;
  const DrawnSizes likely(maker.job, maker.job.variants.front(), 0);
  const DrawnSizes drawn(maker.job, maker.job.variants.front(), 1);
  for (Bytes bytes = kMiB; bytes < 64 * kMiB; bytes += kMiB) {
    EXPECT_EQ(likely.OfWorkspace(bytes), bytes);
    EXPECT_LE(std::abs(drawn.OfWorkspace(bytes) - bytes), 512);
  }
  EXPECT_EQ(drawn.OfWorkspace(0), 0);
}

}  // namespace
}  // namespace plimsoll::drawn_sizes_test

#include "job/answer/earlier_frees.h"

#include <gtest/gtest.h>

#include "job/lowering/job_for_tests.h"

namespace plimsoll::earlier_frees_test {
namespace {

using testing_job::Always;
using testing_job::JobMaker;

constexpr std::int64_t kMiB = 1 << 20;

/// Two peaks in each step, each with something that could be freed before it.
class EarlierFreesTest : public ::testing::Test {
 protected:
  /// In MiB: what lies at each peak besides.
  void MakeJob(std::int64_t first_peak, std::int64_t second_peak) {
    Release first{.edits = {Edit("a")}, .frees = {}};
    Release second{.edits = {Edit("b")}, .frees = {}};
    for (int i = 0; i < 3; ++i) {
      maker.BeginStep();
      const Storage a = maker.Make("aten.relu.default", Floats(40));
      first.frees.push_back({maker.variant().events.size(), a});
      maker.Free(maker.Make("aten.relu.default", Floats(first_peak)));
      maker.Free(a);
      const Storage b = maker.Make("aten.relu.default", Floats(20));
      second.frees.push_back({maker.variant().events.size(), b});
      maker.Free(maker.Make("aten.relu.default", Floats(second_peak)));
      maker.Free(b);
    }
    maker.variant().releases = {first, second};
  }
  static Number Floats(std::int64_t mib) { return Always(mib * kMiB / 4); }
  ReleaseEdit Edit(std::string_view name) {
    return {.kind = ReleaseEdit::Kind::kVariable,
            .name = maker.job.strings.Intern(name),
            .where = maker.job.strings.Intern("train.py:9 in step")};
  }
  std::optional<EarlierFrees> Find() {
    const Result<Setting> setting = MakeSetting(maker.job, *FindGpu("H200"), {.batch = 2});
    EXPECT_TRUE(setting.ok());
    return FindEarlierFrees(Trial(*setting));
  }
  JobMaker maker;
};

TEST_F(EarlierFreesTest, WhatLowersThePeakIsOfferedWithWhatItSaves) {
  MakeJob(200, 100);
  const std::optional<EarlierFrees> found = Find();
  ASSERT_TRUE(found.has_value());
  ASSERT_EQ(found->changes.size(), 1u);
  EXPECT_EQ(found->changes[0].edits[0].name, "a");
  EXPECT_EQ(found->changes[0].saved.allocated, 40 * kMiB);
  EXPECT_EQ(found->changes[0].made_at, "train.py:7 in step");
  EXPECT_EQ(found->changes[0].by_step, 0);
  EXPECT_EQ(found->together.allocated, 40 * kMiB);
}

TEST_F(EarlierFreesTest, TheOtherPeakIsTheEndOfWhatIsSaved) {
  MakeJob(200, 206);
  const std::optional<EarlierFrees> found = Find();
  ASSERT_TRUE(found.has_value());
  ASSERT_EQ(found->changes.size(), 2u);
  EXPECT_EQ(found->changes[0].saved.allocated, 14 * kMiB);
  EXPECT_EQ(found->changes[1].saved.allocated, 0);
  EXPECT_EQ(found->together.allocated, 34 * kMiB);
}

TEST_F(EarlierFreesTest, WhatDoesNotLowerThePeakIsNotOffered) {
  MakeJob(200, 400);
  maker.variant().releases.pop_back();
  EXPECT_FALSE(Find().has_value());
}

TEST_F(EarlierFreesTest, AJobWithoutReleasesHasNone) {
  MakeJob(200, 100);
  maker.variant().releases.clear();
  EXPECT_FALSE(Find().has_value());
}

TEST_F(EarlierFreesTest, WhatIsKeptOfEveryStepGrows) {
  Release release{.edits = {Edit("history")}, .frees = {}};
  for (int i = 0; i < 3; ++i) {
    maker.BeginStep();
    const Storage kept = maker.Make("aten.relu.default", Floats(40));
    release.frees.push_back({maker.variant().events.size(), kept});
  }
  maker.variant().releases = {release};
  const std::optional<EarlierFrees> found = Find();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->changes[0].saved.allocated, 4 * 40 * kMiB);
  EXPECT_EQ(found->changes[0].by_step, 40 * kMiB);
}

}  // namespace
}  // namespace plimsoll::earlier_frees_test

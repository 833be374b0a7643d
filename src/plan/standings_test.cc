#include "plan/standings.h"

#include <gtest/gtest.h>

#include "plan/choice_for_tests.h"

namespace plimsoll::standings_test {
namespace {

Way Tried(const Choice& choice, double us, bool fits = true) {
  TrialResult trial{.room = 200, .surely_fits = fits, .step_us = us};
  trial.needs.reserved = {100, 100, 100};
  trial.unlimited.allocated = {90, 90, 90};
  return {.choice = choice, .samples = 1, .trial = trial};
}

const Choice kBf16 = WithSettings({}, {"precision=amp_bf16"});
const Choice kFp16 = WithSettings({}, {"precision=amp_fp16"});
const Choice kBf16Fused = WithSettings(kBf16, {"optimizer=adamw:fused"});
const Choice kFused = WithSettings({}, {"optimizer=adamw:fused"});

TEST(Standings, WithoutAnythingThatFitsThereIsNoLimit) {
  Standings standings;
  standings.Add(Tried(kBf16, 100, false));
  EXPECT_EQ(standings.Best(), Standings::kNone);
  EXPECT_EQ(standings.Limit(SetBy(kBf16)), Standings::kNone);
}

TEST(Standings, ALeverHasToEarnAPercent) {
  Standings standings;
  standings.Add(Tried(kBf16, 100));
  EXPECT_DOUBLE_EQ(standings.Limit(SetBy(kFp16)), 100) << "another value of the same lever";
  EXPECT_DOUBLE_EQ(standings.Limit(SetBy(kBf16Fused)), 99) << "one more lever";
  EXPECT_DOUBLE_EQ(standings.Limit(SetBy(kFused)), 200) << "another lever";
  EXPECT_TRUE(standings.IsNeedless(SetBy(kBf16Fused), 99.5));
  EXPECT_FALSE(standings.IsNeedless(SetBy(kBf16Fused), 98.5));
  EXPECT_FALSE(standings.IsNeedless(SetBy(kFused), 150));
}

TEST(Standings, WhatNeedsNoLessThanAnotherWithFewerLeversIsDominated) {
  Standings standings;
  standings.Add(Tried(kBf16, 100, false));
  EXPECT_TRUE(standings.IsDominated(Tried(kFp16, 100, false)));
  EXPECT_TRUE(standings.IsDominated(Tried(kBf16Fused, 99.5, false)));
  EXPECT_FALSE(standings.IsDominated(Tried(kBf16Fused, 95, false))) << "it is faster";
  EXPECT_FALSE(standings.IsDominated(Tried(kFused, 100, false))) << "it sets other levers";
  EXPECT_FALSE(standings.IsDominated(Tried(kBf16, 100, false))) << "it is the same";
  Way smaller = Tried(kBf16Fused, 100, false);
  smaller.trial.needs.reserved.best = 80;
  EXPECT_FALSE(standings.IsDominated(smaller)) << "it needs less";
}

}  // namespace
}  // namespace plimsoll::standings_test

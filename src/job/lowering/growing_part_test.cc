#include "job/lowering/growing_part.h"

#include <gtest/gtest.h>

#include "job/answer/served_cache.h"
#include "job/lowering/job_for_tests.h"

namespace plimsoll::growing_part_test {
namespace {

using testing_job::Always;
using testing_job::Each;
using testing_job::JobMaker;
using testing_job::RequestsOf;

/// A cache of two floats a token and sample, which is made anew for each token while the one before
/// it is there; `times`: rounds of the part that grows.
JobMaker Generation(std::int64_t times, bool keeps = false) {
  JobMaker maker;
  maker.Parameter(25);
  Storage cache = 0;
  for (std::int64_t token = 0; token < 4; ++token) {
    maker.BeginPart({.stage = token == 0 ? Stage::kPrompt : Stage::kGeneration,
                     .times = Always(token == 3 ? times : 1),
                     .grows = token == 3});
    const Storage longer =
        maker.Make("aten.cat.default", std::vector<Number>{Each(1), Always(2), Always(5 + token)});
    maker.Label(Category::kCache, longer);
    if (cache != 0) maker.Free(cache);
    cache = longer;
    if (keeps) maker.Make("aten.relu.default", Always(1));
  }
  return maker;
}

Lowered LowerIt(const JobMaker& maker) {
  return Lower(maker.job, maker.job.variants.front(), *FindGpu("H200"), {.batch = 2, .steps = 0});
}

TEST(GrowingPart, GoesOnAsItWent) {
  EXPECT_EQ(RequestsOf(LowerIt(Generation(1))), "+100 +80 +96 -80 +112 -96 +128 -112");
  EXPECT_EQ(RequestsOf(LowerIt(Generation(4))),
            "+100 +80 +96 -80 +112 -96 +128 -112 +144 -128 +160 -144 +176 -160");
}

TEST(GrowingPart, WhatEachRoundKeepsIsThereForEach) {
  const Lowered lowered = LowerIt(Generation(4, /*keeps=*/true));
  int kept = 0;
  for (const LoweredBlock& block : lowered.blocks) kept += block.requested == 4 ? 1 : 0;
  EXPECT_EQ(kept, 7);
  EXPECT_EQ(lowered.rounds, 3);
  EXPECT_EQ(lowered.rounds_run, 3);
}

TEST(GrowingPart, WhatDoesNotChangeRunsOnceMore) {
  JobMaker maker;
  for (int i = 0; i < 3; ++i) {
    maker.BeginPart({.times = Always(i == 2 ? 1000 : 1), .grows = i == 2});
    maker.Free(maker.Make("aten.relu.default", Each(10)));
  }
  EXPECT_EQ(RequestsOf(LowerIt(maker)), "+80 -80 +80 -80 +80 -80 +80 -80");
}

TEST(GrowingPart, RoundsAreSpreadWhereTheyAreTooMany) {
  const Lowered lowered = LowerIt(Generation(2'000'001));
  EXPECT_EQ(lowered.rounds, 2'000'000);
  EXPECT_LT(lowered.rounds_run, 600'000);
  EXPECT_EQ(lowered.blocks.back().requested, 4 * 2 * 2 * (5 + 3 + 2'000'000)) << "the last one";
}

TEST(ServedCache, IsKnownByTheToken) {
  JobMaker maker = Generation(4);
  const Result<Setting> setting = MakeSetting(maker.job, *FindGpu("H200"), {.batch = 2});
  ASSERT_TRUE(setting);
  const Trial trial(*setting);
  const std::optional<ServedCache> cache = FindServedCache(trial);
  ASSERT_TRUE(cache);
  EXPECT_EQ(cache->bytes, 176);
  EXPECT_EQ(cache->token, 8);
  EXPECT_EQ(cache->tokens, (setting->Room() - 100) / 8);
  const std::optional<TokenNumber> last = TokenAt(*setting, trial.lowered().moments.back());
  ASSERT_TRUE(last);
  EXPECT_EQ(last->token, 7);
  EXPECT_EQ(last->of, 7);
}

}  // namespace
}  // namespace plimsoll::growing_part_test

#include "allocator/settings/rules.h"

#include <gtest/gtest.h>

namespace plimsoll::rules_test {
namespace {

AllocatorRules With(const AllocatorSettings& settings) {
  return {.settings = settings, .version = RulesOf({})};
}

TEST(Rules, ARequestIsRoundedUpToFiveHundredAndTwelve) {
  const AllocatorRules rules;
  EXPECT_EQ(rules.Round(0), 512);
  EXPECT_EQ(rules.Round(1), 512);
  EXPECT_EQ(rules.Round(512), 512);
  EXPECT_EQ(rules.Round(513), 1024);
  EXPECT_EQ(rules.Round(5 * kGiB + 1), 5 * kGiB + 512);
}

TEST(Rules, OrToADivisionOfItsPowerOfTwo) {
  AllocatorSettings settings;
  settings.roundup_power2_divisions.fill(4);
  const AllocatorRules rules = With(settings);
  EXPECT_EQ(rules.Round(1200 * kKiB), 1280 * kKiB);
  EXPECT_EQ(rules.Round(kMiB), kMiB);
  EXPECT_EQ(rules.Round(kMiB + 1), kMiB + 256 * kKiB);
  EXPECT_EQ(rules.Round(2 * kMiB - 1), 2 * kMiB);
  // 512 times the divisions is still too small.
  EXPECT_EQ(rules.Round(2048), 2048);
  EXPECT_EQ(rules.Round(2049), 2560);
  EXPECT_EQ(rules.Round(2560), 2560);
}

TEST(Rules, EachPowerOfTwoHasItsDivisions) {
  AllocatorSettings settings;
  settings.roundup_power2_divisions[0] = 2;
  settings.roundup_power2_divisions[3] = 8;
  settings.roundup_power2_divisions[15] = 1;
  const AllocatorRules rules = With(settings);
  EXPECT_EQ(rules.Round(5000), 6144);  // below 1 MiB as at it
  EXPECT_EQ(rules.Round(3 * kMiB + 1), 3 * kMiB + 512);
  EXPECT_EQ(rules.Round(8 * kMiB + 1), 9 * kMiB);
  EXPECT_EQ(rules.Round(100 * kGiB + 1), 100 * kGiB + 512);
}

TEST(Rules, HugeSizesStayRepresentable) {
  const AllocatorRules rules;
  EXPECT_EQ(rules.Round(kUnlimited), kUnlimited);
  EXPECT_EQ(rules.SegmentFor(kUnlimited), kUnlimited);
}

TEST(Rules, ARemainderIsSplitOffWhereItCanStandAlone) {
  AllocatorSettings settings;
  settings.max_split_size = 100 * kMiB;
  const AllocatorRules rules = With(settings);
  EXPECT_TRUE(rules.Splits(kMiB, 512, false));
  EXPECT_FALSE(rules.Splits(kMiB, 511, false));
  EXPECT_FALSE(rules.Splits(2 * kMiB, kMiB, false));
  EXPECT_TRUE(rules.Splits(2 * kMiB, kMiB + 1, false));
  EXPECT_TRUE(rules.Splits(2 * kMiB, 512, true));
  EXPECT_FALSE(rules.Splits(100 * kMiB, kGiB, false));
  EXPECT_TRUE(rules.Splits(100 * kMiB - 512, kGiB, false));
}

TEST(Rules, TheSegmentOfARequest) {
  AllocatorSettings settings;
  settings.large_segment_size = 64 * kMiB;
  EXPECT_EQ(AllocatorRules{}.SegmentFor(512), 2 * kMiB);
  EXPECT_EQ(AllocatorRules{}.SegmentFor(kMiB), 2 * kMiB);
  EXPECT_EQ(AllocatorRules{}.SegmentFor(kMiB + 512), 20 * kMiB);
  EXPECT_EQ(With(settings).SegmentFor(10 * kMiB - 512), 64 * kMiB);
  EXPECT_EQ(With(settings).SegmentFor(10 * kMiB), 10 * kMiB);
  EXPECT_EQ(With(settings).SegmentFor(10 * kMiB + 512), 12 * kMiB);
}

TEST(Rules, ComeFromARecord) {
  RecordedSettings recorded;
  recorded.conf = "large_segment_size_mb:64";
  recorded.max_split_size = 128 * kMiB;
  const AllocatorRules rules = AllocatorRules::From(recorded, {.major = 2, .minor = 13});
  EXPECT_EQ(rules.settings.max_split_size, 128 * kMiB);
  EXPECT_EQ(rules.SegmentFor(2 * kMiB), 64 * kMiB);
  EXPECT_EQ(rules.version.tie_break, TieBreak::kSegmentNumber);
}

}  // namespace
}  // namespace plimsoll::rules_test

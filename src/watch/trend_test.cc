#include "watch/trend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace plimsoll::trend_test {
namespace {

Trend FitOf(double seconds, double interval, auto bytes_at) {
  Series series;
  for (double t = 0; t <= seconds + 1e-9; t += interval) {
    series.Add(1000 + t, static_cast<Bytes>(bytes_at(t)));
  }
  return series.Fit();
}

TEST(Trend, TooShortSaysNothing) {
  EXPECT_EQ(Series().Fit().kind, TrendKind::kUnknown);
  const auto line = [](double t) { return double(kGiB) + t * double(100 * kMiB); };
  EXPECT_EQ(FitOf(9, 1, line).kind, TrendKind::kUnknown);
  EXPECT_EQ(FitOf(60, 10, line).kind, TrendKind::kUnknown);  // seven samples
  EXPECT_EQ(FitOf(11, 1, line).kind, TrendKind::kRising);
}

TEST(Trend, ALineIsFoundWithItsSlope) {
  const Trend up = FitOf(59, 1, [](double t) { return double(kGiB) + t * double(100 * kMiB); });
  EXPECT_EQ(up.kind, TrendKind::kRising);
  EXPECT_NEAR(up.bytes_per_second, 100 * kMiB, 1);
  EXPECT_NEAR(up.seconds, 59, 1e-6);
  const Trend down = FitOf(59, 1, [](double t) { return double(90 * kGiB) - t * double(kGiB); });
  EXPECT_EQ(down.kind, TrendKind::kFalling);
  EXPECT_NEAR(down.bytes_per_second, -kGiB, 1);
}

TEST(Trend, AFewOddSamplesDoNotBendIt) {
  const auto spikes = [](double t) {
    const bool odd = std::lround(t) % 7 == 3;
    return double(kGiB) + t * double(100 * kMiB) + (odd ? double(20 * kGiB) : 0);
  };
  const Trend trend = FitOf(59, 1, spikes);
  EXPECT_EQ(trend.kind, TrendKind::kRising);
  EXPECT_NEAR(trend.bytes_per_second, 100 * kMiB, 5 * kMiB);
  const auto flat = [](double t) { return double(kGiB) + (t == 30 ? double(9 * kGiB) : 0); };
  EXPECT_EQ(FitOf(59, 1, flat).kind, TrendKind::kFlat);
}

TEST(Trend, ALeakInStairsIsSteady) {
  // The allocator takes a new segment every four seconds.
  const auto stairs = [](double t) {
    return double(kGiB) + std::floor(t / 4) * double(512 * kMiB);
  };
  const Trend trend = FitOf(59, 1, stairs);
  EXPECT_EQ(trend.kind, TrendKind::kRising);
  EXPECT_NEAR(trend.bytes_per_second, 128 * kMiB, 8 * kMiB);
}

TEST(Trend, WhatIsNotSteadyIsNotPromised) {
  // The first steps fill the cache, then nothing more is taken.
  const auto warm_up = [](double t) { return double(kGiB) * (1 + std::min(t, 12.0)); };
  EXPECT_EQ(FitOf(59, 1, warm_up).kind, TrendKind::kUneven);
  // One leap.
  const auto leap = [](double t) { return double(t < 30 ? kGiB : 9 * kGiB); };
  EXPECT_EQ(FitOf(59, 1, leap).kind, TrendKind::kUneven);
  // Up and down, step by step, seen at whatever moment.
  std::mt19937 random(7);
  std::uniform_real_distribution<double> part(0, 1);
  const auto steps = [&](double) { return double(kGiB) * (2 + 6 * part(random)); };
  EXPECT_EQ(FitOf(59, 1, steps).kind, TrendKind::kUneven);
  // Ever slower.
  const auto slower = [](double t) { return double(40 * kGiB) * (1 - std::exp(-t / 12)); };
  EXPECT_EQ(FitOf(59, 1, slower).kind, TrendKind::kUneven);
}

TEST(Trend, OnlyTheLastMinuteCounts) {
  // It rose for two minutes and stopped a minute ago.
  const auto stopped = [](double t) { return double(kGiB) * (1 + std::min(t, 120.0)); };
  EXPECT_EQ(FitOf(185, 1, stopped).kind, TrendKind::kFlat);
  // Often or seldom: the same line.
  const auto line = [](double t) { return double(kGiB) + t * double(10 * kMiB); };
  EXPECT_NEAR(FitOf(120, 0.1, line).bytes_per_second, 10 * kMiB, 1);
  EXPECT_NEAR(FitOf(600, 30, line).bytes_per_second, 10 * kMiB, 1);
}

TEST(Trend, TimeUntilFull) {
  const Trend rising{.kind = TrendKind::kRising, .bytes_per_second = double(100 * kMiB)};
  EXPECT_DOUBLE_EQ(SecondsUntilFull(rising, 1000 * kMiB).value(), 10);
  EXPECT_FALSE(SecondsUntilFull(rising, 100 * kMiB * 86401));  // more than a day
  EXPECT_FALSE(SecondsUntilFull({.kind = TrendKind::kFlat}, kGiB));
  EXPECT_FALSE(SecondsUntilFull({.kind = TrendKind::kUneven, .bytes_per_second = 9e9}, kGiB));
  EXPECT_FALSE(SecondsUntilFull({.kind = TrendKind::kFalling, .bytes_per_second = -9e9}, kGiB));
}

}  // namespace
}  // namespace plimsoll::trend_test

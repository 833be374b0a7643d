#include "diagnose/logged/growth.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <vector>

#include "base/bytes.h"

namespace plimsoll::growth_test {

std::vector<LoggedPoint> Points(int steps, const std::function<double(int)>& gibibytes) {
  std::vector<LoggedPoint> points;
  for (int step = 1; step <= steps; ++step) {
    points.push_back({step, static_cast<std::int64_t>(gibibytes(step) * double(kGiB)), step});
  }
  return points;
}

double RateOf(const std::optional<Rise>& rise) { return rise ? rise->rate / double(kGiB) : 0; }

TEST(Growth, BeginsWhereTheLineDoes) {
  const auto points =
      Points(131, [](int step) { return 41.2 + (step > 120 ? 0.4 * (step - 120) : 0); });
  const std::optional<Rise> rise = FindRise(points, kGiB / 200);
  ASSERT_TRUE(rise);
  EXPECT_NEAR(RateOf(rise), 0.4, 0.01);
  EXPECT_NEAR(double(points[rise->begin].step), 120, 1);
}

TEST(Growth, WithNoise) {
  std::mt19937 random(1);
  std::normal_distribution<double> noise(0, 0.1);
  const std::optional<Rise> rise =
      FindRise(Points(60, [&](int step) { return 20 + 0.05 * step + noise(random); }), kGiB / 200);
  ASSERT_TRUE(rise);
  EXPECT_NEAR(RateOf(rise), 0.05, 0.01);
}

TEST(Growth, NotOfWhatVaries) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> size(40, 60);
    EXPECT_FALSE(FindRise(Points(40, [&](int) { return size(random); }), kGiB / 200)) << seed;
  }
}

TEST(Growth, NotOfTheFirstSteps) {
  EXPECT_FALSE(FindRise(Points(30, [](int step) { return step < 3 ? 10 * step : 30.0; }), 0));
}

TEST(Growth, NotOfOneRiseNorOfOneThatEnds) {
  EXPECT_FALSE(FindRise(Points(60, [](int step) { return step < 30 ? 10.0 : 20.0; }), 0));
  EXPECT_FALSE(FindRise(Points(100, [](int step) { return 10 + 0.2 * std::min(step, 30); }), 0));
  EXPECT_FALSE(
      FindRise(Points(60, [](int step) { return 10 + (step % 10); }), 0));  // given back each time
}

TEST(Growth, OfAJobThatDiesInItsSixthStep) {
  const std::optional<Rise> rise =
      FindRise(Points(6, [](int step) { return step < 2 ? 2.0 : 3 + 0.945 * step; }), kGiB / 200);
  ASSERT_TRUE(rise);
  EXPECT_NEAR(RateOf(rise), 0.945, 0.001);
}

TEST(Growth, NotOfAFewPointsThatAreUnevenOrFewer) {
  EXPECT_FALSE(FindRise(Points(5, [](int step) { return 10.0 + step; }), 0));
  EXPECT_FALSE(FindRise(Points(6, [](int step) { return 10.0 + step * step; }), 0));
  EXPECT_FALSE(FindRise(Points(9, [](int step) { return 10.0 + step + (step % 3); }), 0));
  EXPECT_FALSE(FindRise(Points(6, [](int step) { return 40 + 0.1 * step; }), 0));
}

}  // namespace plimsoll::growth_test

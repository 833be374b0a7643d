#include "timeline/logged_series.h"

#include <gtest/gtest.h>

namespace plimsoll::logged_series_test {

TEST(LoggedSeries, ThinningKeepsExtremes) {
  LoggedSeries series;
  for (std::int64_t step = 0; step < 100'000; ++step) {
    const std::int64_t value = step == 61'234 ? 999 : step == 61'235 ? -5 : step % 7;
    series.Add({step, value, step + 1});
  }
  EXPECT_LT(series.points.size(), LoggedSeries::kMostPoints);
  EXPECT_EQ(series.count, 100'000);
  EXPECT_EQ(series.first.step, 0);
  EXPECT_EQ(series.last.step, 99'999);
  EXPECT_EQ(series.highest.step, 61'234);
  EXPECT_EQ(series.lowest.step, 61'235);
  EXPECT_EQ(series.first_step, 0);
  EXPECT_EQ(series.last_step, 99'999);
  bool kept = false;
  std::int64_t before = -1;
  for (const LoggedPoint& point : series.points) {
    kept |= point.value == 999;
    EXPECT_GT(point.step, before);
    before = point.step;
  }
  EXPECT_TRUE(kept);
}

TEST(LoggedSeries, RewrittenLinesKeepTheHighestOfAStep) {
  LoggedSeries series;
  for (const std::int64_t value : {5, 9, 7}) series.AddRewritten({1, value, 1});
  for (const std::int64_t value : {6, 4}) series.AddRewritten({2, value, 2});
  ASSERT_EQ(series.points.size(), 2u);
  EXPECT_EQ(series.points[0].value, 9);
  EXPECT_EQ(series.points[1].value, 6);
  EXPECT_EQ(series.highest.value, 9);
}

}  // namespace plimsoll::logged_series_test

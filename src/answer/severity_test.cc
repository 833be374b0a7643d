#include "answer/severity.h"

#include <gtest/gtest.h>

namespace plimsoll::severity_test {
namespace {

TEST(SeverityOfShare, FallsWithTheShareOneGradeAtATime) {
  Severity last = Severity::kHigh;
  for (int i = 1000; i >= 0; --i) {
    const Severity now = SeverityOfShare(double(i) / 1000);
    EXPECT_GE(now, last);
    EXPECT_LE(static_cast<int>(now) - static_cast<int>(last), 1);
    last = now;
  }
  EXPECT_EQ(last, Severity::kInfo);
  EXPECT_EQ(LeastLow(SeverityOfShare(0)), Severity::kLow);
  EXPECT_EQ(LeastLow(SeverityOfShare(0.5)), Severity::kHigh);
}

}  // namespace
}  // namespace plimsoll::severity_test

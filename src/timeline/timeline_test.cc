#include "timeline/timeline.h"

#include <gtest/gtest.h>

namespace plimsoll::timeline_test {
namespace {

TEST(Timeline, ValidateNamesTheFirstBrokenInvariant) {
  Timeline t;
  t.streams = {0};
  t.events.push_back({.size = 10, .action = Action::kAlloc});
  EXPECT_EQ(t.Validate(), std::nullopt);
  t.events.push_back({.stream = 1});
  EXPECT_EQ(t.Validate(), "event 1 has an unknown stream");
  t.events.back() = {.stack = StackId(0)};
  EXPECT_EQ(t.Validate(), "event 1 has a stack that does not exist");
  t.events.back() = {.size = -1};
  EXPECT_EQ(t.Validate(), "event 1 has a negative size");
  t.events.pop_back();
  t.segments.push_back({.block_count = 1});
  EXPECT_EQ(t.Validate(), "a segment has blocks past the end");
}

}  // namespace
}  // namespace plimsoll::timeline_test

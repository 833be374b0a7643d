#include "diagnose/attribution/groups.h"

#include <gtest/gtest.h>

namespace plimsoll::groups_test {
namespace {

std::optional<std::string> Found(const std::string& expression, std::string_view text) {
  const Result<GroupPattern> pattern = GroupPattern::Parse(expression);
  EXPECT_TRUE(pattern.ok()) << expression;
  return pattern.ok() ? pattern->FirstIn(text) : std::nullopt;
}

TEST(GroupPattern, FindsTheWholeOrItsFirstGroup) {
  EXPECT_EQ(Found("layers\\.\\d+", "model.layers.12.mlp"), "layers.12");
  EXPECT_EQ(Found("(\\w+)\\.py", "/home/me/train.py"), "train");
  EXPECT_EQ(Found("(x)?train", "train"), "train");
  EXPECT_EQ(Found("x*", "train"), std::nullopt);
  EXPECT_EQ(Found("serve", "train"), std::nullopt);
}

/// A matcher that backtracks takes longer than anybody waits for one of these.
TEST(GroupPattern, TakesTimeLinearInTheText) {
  const std::string text(100'000, 'a');
  for (const char* expression : {"(.*)*x", "(a+)+x", "(a|aa)+x", "(a*)*(a*)*x", "a{0,500}x"}) {
    EXPECT_EQ(Found(expression, text), std::nullopt) << expression;
  }
}

TEST(GroupPattern, RefusesWhatNoLinearMatcherCanDo) {
  for (const char* expression : {"", "(", "(a)\\1", "a(?=b)", "a{1,99999}"}) {
    EXPECT_FALSE(GroupPattern::Parse(expression).ok()) << expression;
  }
}

}  // namespace
}  // namespace plimsoll::groups_test

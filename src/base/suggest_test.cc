#include "base/suggest.h"

#include <gtest/gtest.h>

namespace plimsoll::suggest_test {
namespace {

TEST(EditDistance, CountsChangedAddedLeftOutAndSwappedLetters) {
  EXPECT_EQ(EditDistance("explain", "explain"), 0u);
  EXPECT_EQ(EditDistance("explian", "explain"), 1u);
  EXPECT_EQ(EditDistance("--batchs", "--batches"), 1u);
  EXPECT_EQ(EditDistance("", "gpus"), 4u);
  EXPECT_EQ(EditDistance("true", "True"), 0u);
}

TEST(DidYouMean, NamesTheNearest) {
  const std::vector<std::string_view> known = {"explain", "replay", "report", "tune"};
  EXPECT_EQ(DidYouMean("explian", known), "did you mean explain?");
  EXPECT_EQ(DidYouMean("repl", known), "did you mean replay?");
  EXPECT_EQ(DidYouMean("repor", known), "did you mean report?");
}

TEST(DidYouMean, IsSilentWhereNothingIsNear) {
  EXPECT_EQ(DidYouMean("optimize", {"explain", "tune"}), "");
  EXPECT_EQ(DidYouMean("", {"explain"}), "");
  EXPECT_EQ(DidYouMean("x", {"explain", "tune"}), "");
  EXPECT_EQ(DidYouMean("-z", {"-q", "-o"}), "");
}

TEST(DidYouMean, NamesAtMostThree) {
  EXPECT_EQ(DidYouMean("--a", {"--b", "--c", "--d", "--e"}), "did you mean --b, --c or --d?");
}

TEST(SuggestOr, KeepsTheOrdinaryHint) {
  EXPECT_EQ(SuggestOr("tun", {"tune"}, "see help"), "did you mean tune? see help");
  EXPECT_EQ(SuggestOr("xyz", {"tune"}, "see help"), "see help");
}

}  // namespace
}  // namespace plimsoll::suggest_test

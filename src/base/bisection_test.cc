#include "base/bisection.h"

#include <gtest/gtest.h>

#include <set>

namespace plimsoll::bisection_test {
namespace {

TEST(Bisection, FindsEveryChangeByFewTries) {
  for (std::size_t last = 1; last <= 64; ++last) {
    for (std::size_t change = 1; change <= last; ++change) {
      std::size_t tries = 0;
      const Bisection found = FindChange(last, [&](std::size_t i) {
        EXPECT_GT(i, 0u);
        EXPECT_LT(i, last);
        ++tries;
        return i < change ? Side::kBefore : Side::kAfter;
      });
      EXPECT_EQ(found.last_before, change - 1);
      EXPECT_EQ(found.first_after, change);
      EXPECT_FALSE(found.stopped);
      std::size_t enough = 0;
      while ((std::size_t{1} << enough) < last) ++enough;
      EXPECT_LE(tries, enough) << last << " " << change;
    }
  }
}

TEST(Bisection, WhatCannotBeTriedIsAllThatIsLeftBetween) {
  constexpr std::size_t kLast = 9;
  for (std::size_t change = 1; change <= kLast; ++change) {
    for (unsigned broken = 0; broken < (1u << (kLast - 1)); ++broken) {
      const auto is_broken = [&](std::size_t i) { return ((broken >> (i - 1)) & 1) != 0; };
      std::set<std::size_t> tried;
      const Bisection found = FindChange(kLast, [&](std::size_t i) {
        EXPECT_TRUE(tried.insert(i).second) << "tried again";
        if (is_broken(i)) return Side::kUnknown;
        return i < change ? Side::kBefore : Side::kAfter;
      });
      EXPECT_LT(found.last_before, change);
      EXPECT_GE(found.first_after, change);
      for (std::size_t i = found.last_before + 1; i < found.first_after; ++i) {
        EXPECT_TRUE(is_broken(i)) << i;
      }
    }
  }
}

TEST(Bisection, ALongBrokenStretchIsLeft) {
  // Of a thousand, three hundred in the middle are broken; the change lies beside them.
  std::size_t tries = 0;
  const Bisection found = FindChange(1000, [&](std::size_t i) {
    ++tries;
    if (i >= 350 && i < 650) return Side::kUnknown;
    return i < 700 ? Side::kBefore : Side::kAfter;
  });
  EXPECT_EQ(found.last_before, 699u);
  EXPECT_EQ(found.first_after, 700u);
  EXPECT_LE(tries, 16u);
}

TEST(Bisection, StopsWhenAsked) {
  std::size_t tries = 0;
  const Bisection found =
      FindChange(100, [&](std::size_t) { return ++tries == 2 ? Side::kStop : Side::kBefore; });
  EXPECT_TRUE(found.stopped);
  EXPECT_EQ(tries, 2u);
}

TEST(Bisection, NeighboursNeedNoTry) {
  const Bisection found = FindChange(1, [](std::size_t) {
    ADD_FAILURE();
    return Side::kStop;
  });
  EXPECT_EQ(found.first_after, 1u);
}

}  // namespace
}  // namespace plimsoll::bisection_test

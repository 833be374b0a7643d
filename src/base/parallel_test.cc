#include "base/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <stdexcept>
#include <vector>

namespace plimsoll::parallel_test {
namespace {

TEST(ParallelFor, DoesEachPieceOnce) {
  for (const unsigned threads : {0u, 1u, 3u, 64u}) {
    std::vector<std::atomic<int>> done(1000);
    ParallelFor(
        done.size(), [&](std::size_t i) { ++done[i]; }, threads);
    for (const std::atomic<int>& times : done) EXPECT_EQ(times, 1);
  }
}

TEST(ParallelFor, HandsAnErrorToTheCaller) {
  for (const unsigned threads : {1u, 2u, 8u}) {
    std::atomic<int> done = 0;
    const auto work = [&](std::size_t i) {
      ++done;
      // From there on all, so that each thread meets one, however late the others run.
      if (i >= 3) throw std::runtime_error("three or more");
    };
    EXPECT_THROW(ParallelFor(100'000, work, threads), std::runtime_error);
    EXPECT_LE(done, 3 + static_cast<int>(threads)) << "the rest is not worth doing";
  }
  EXPECT_THROW(ParallelFor(
                   8, [](std::size_t) { throw std::bad_alloc(); }, 4),
               std::bad_alloc);
}

// Work that fails everywhere: the same error in each run.
TEST(ParallelFor, TellsTheFirstError) {
  for (int repeat = 0; repeat < 50; ++repeat) {
    try {
      ParallelFor(
          4, [](std::size_t i) { throw std::runtime_error(std::to_string(i)); }, 4);
      FAIL();
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "0");
    }
  }
}

}  // namespace
}  // namespace plimsoll::parallel_test

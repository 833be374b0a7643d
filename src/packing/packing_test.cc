#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "packing/as_they_come.h"
#include "packing/bound.h"
#include "packing/greedy.h"
#include "packing/instance.h"
#include "packing/search.h"
#include "packing/solve.h"
#include "packing/validate.h"

namespace plimsoll::packing_test {
namespace {

Problem Example() { return {{{0, 3, 4}, {3, 9, 4}, {0, 9, 4}, {9, 21, 4}, {0, 21, 4}}}; }

Problem RandomProblem(std::mt19937_64& random, std::size_t most_buffers, Tick span, Bytes most_size,
                      Bytes most_alignment = 1) {
  const auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % n); };
  Problem problem;
  const std::size_t count = random() % (most_buffers + 1);
  for (std::size_t i = 0; i < count; ++i) {
    const Tick lower = below(span);
    problem.buffers.push_back(
        {lower, lower + 1 + below(span - lower), below(most_size + 1), 1 + below(most_alignment)});
  }
  return problem;
}

/// The least height over all orders in which the buffers can be stacked: in an optimal packing that
/// is pushed down, every buffer rests on the ground or on one that comes before it.
Bytes BruteForceHeight(const Problem& problem) {
  const auto& buffers = problem.buffers;
  std::vector<std::size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  Bytes least = std::numeric_limits<Bytes>::max();
  do {
    std::vector<Bytes> offset(buffers.size(), 0);
    Bytes height = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const Buffer& b = buffers[order[i]];
      for (std::size_t j = 0; j < i; ++j) {
        const Buffer& below = buffers[order[j]];
        if (b.lower < below.upper && below.lower < b.upper) {
          offset[order[i]] = std::max(offset[order[i]], offset[order[j]] + below.size);
        }
      }
      offset[order[i]] = AlignUp(offset[order[i]], b.alignment);
      height = std::max(height, offset[order[i]] + b.size);
    }
    least = std::min(least, height);
  } while (std::next_permutation(order.begin(), order.end()));
  return least;
}

void ExpectSound(const Problem& problem, const PackResult& result) {
  EXPECT_EQ(FindFault(problem, result.packing).value_or("valid"), "valid");
  EXPECT_GE(result.packing.height, result.lower_bound);
  EXPECT_GE(result.lower_bound, MostAlive(problem));
  EXPECT_EQ(result.optimal, result.packing.height == result.lower_bound);
}

TEST(Bound, CountsWhatIsAliveAtOnce) {
  EXPECT_EQ(MostAlive(Example()), 12);
  EXPECT_EQ(MostAlive({}), 0);
  EXPECT_EQ(MostAlive({{{0, 5, 3}, {5, 9, 4}}}), 4);
}

TEST(FindFault, SeesEveryKindOfFault) {
  const Problem two = {{{0, 5, 3}, {4, 9, 4, 4}}};
  EXPECT_FALSE(FindFault(two, {{0, 4}, 8}));
  EXPECT_TRUE(FindFault(two, {{0}, 3}));
  EXPECT_TRUE(FindFault(two, {{0, 4}, 7}));
  EXPECT_TRUE(FindFault(two, {{-3, 4}, 8}));
  EXPECT_TRUE(FindFault(two, {{0, 3}, 7}));
  EXPECT_TRUE(FindFault(two, {{0, 0}, 4}));
  EXPECT_TRUE(FindFault(two, {{2, 0}, 5}));
}

TEST(FindFault, AgreesWithComparingAllPairs) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 3000; ++round) {
    const Problem problem = RandomProblem(random, 6, 6, 3);
    Packing packing;
    for (const Buffer& b : problem.buffers) {
      packing.offsets.push_back(static_cast<Bytes>(random() % 8));
      packing.height = std::max(packing.height, packing.offsets.back() + b.size);
    }
    bool overlap = false;
    for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        const Buffer& a = problem.buffers[i];
        const Buffer& b = problem.buffers[j];
        const Bytes above = packing.offsets[i];
        const Bytes below = packing.offsets[j];
        overlap |= a.size > 0 && b.size > 0 && a.lower < b.upper && b.lower < a.upper &&
                   above < below + b.size && below < above + a.size;
      }
    }
    EXPECT_EQ(FindFault(problem, packing).has_value(), overlap);
  }
}

TEST(Reduce, KeepsWhoMeetsWhom) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 500; ++round) {
    const Problem problem = RandomProblem(random, 12, 12, 5);
    const Instance instance = Reduce(problem);
    EXPECT_LE(instance.sections, problem.buffers.size());
    for (std::size_t i = 0; i < instance.items.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        const Buffer& a = problem.buffers[instance.buffer[i]];
        const Buffer& b = problem.buffers[instance.buffer[j]];
        EXPECT_EQ(a.lower < b.upper && b.lower < a.upper,
                  instance.items[i].first <= instance.items[j].last &&
                      instance.items[j].first <= instance.items[i].last);
      }
    }
  }
}

TEST(Pack, SolvesTheExample) {
  const auto result = Pack(Example());
  ASSERT_TRUE(result.ok());
  ExpectSound(Example(), *result);
  EXPECT_EQ(result->packing.height, 12);
  EXPECT_TRUE(result->optimal);
}

TEST(Pack, AcceptsNothingAndNothingnesses) {
  EXPECT_EQ(Pack({})->packing.height, 0);
  EXPECT_TRUE(Pack({})->optimal);
  EXPECT_EQ(Pack({{{0, 1, 0}, {0, 4, 0}}})->packing.height, 0);
}

TEST(Pack, RefusesWhatMakesNoSense) {
  EXPECT_FALSE(Pack({{{3, 3, 1}}}).ok());
  EXPECT_FALSE(Pack({{{0, 1, -1}}}).ok());
  EXPECT_FALSE(Pack({{{0, 1, 1, 0}}}).ok());
  EXPECT_FALSE(Pack({{{0, 1, Bytes{1} << 59}, {0, 1, Bytes{1} << 59}}}).ok());
}

TEST(Pack, EqualsBruteForce) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 300; ++round) {
    const Problem problem = RandomProblem(random, 7, 1 + round % 10, 1 + round % 17);
    const Bytes least = BruteForceHeight(problem);
    const auto result = Pack(problem);
    ASSERT_TRUE(result.ok());
    ExpectSound(problem, *result);
    EXPECT_TRUE(result->optimal);
    EXPECT_EQ(result->packing.height, problem.buffers.empty() ? 0 : least);
  }
}

TEST(Pack, EqualsBruteForceWithAlignments) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 300; ++round) {
    const Problem problem = RandomProblem(random, 6, 1 + round % 8, 9, 1 + round % 5);
    const auto result = Pack(problem);
    ASSERT_TRUE(result.ok());
    ExpectSound(problem, *result);
    EXPECT_TRUE(result->optimal);
    EXPECT_EQ(result->packing.height, problem.buffers.empty() ? 0 : BruteForceHeight(problem));
  }
}

/// The search alone, without the greedy packing that solves most small problems before it.
TEST(Search, EqualsBruteForce) {
  std::mt19937_64 random(29);
  for (int round = 0; round < 1500; ++round) {
    const Problem problem =
        RandomProblem(random, 7, 2 + round % 12, 1 + round % 13, round % 4 == 0 ? 4 : 1);
    const Instance instance = Reduce(problem);
    if (instance.items.empty()) continue;
    const Bytes least = BruteForceHeight(problem) - instance.bottom_size;
    for (int repeat = 0; repeat < 3; ++repeat) {
      for (Bytes capacity = std::max<Bytes>(0, least - 2); capacity <= least + 1; ++capacity) {
        Search search(instance.items, instance.sections, capacity);
        const Attempt attempt{.noise = 1, .seed = random(), .most_nodes = 1000000};
        const SearchOutcome outcome = search.Run(attempt, {});
        ASSERT_EQ(outcome, capacity >= least ? SearchOutcome::kFound : SearchOutcome::kImpossible);
        if (outcome != SearchOutcome::kFound) continue;
        const Packing packing = Expand(problem, instance, search.offsets());
        EXPECT_EQ(FindFault(problem, packing).value_or("valid"), "valid");
        EXPECT_LE(packing.height - instance.bottom_size, capacity);
      }
    }
  }
}

TEST(Pack, DecidesWhetherACapacityIsEnough) {
  std::mt19937_64 random(13);
  for (int round = 0; round < 300; ++round) {
    const Problem problem = RandomProblem(random, 6, 8, 9);
    if (problem.buffers.empty()) continue;
    const Bytes least = BruteForceHeight(problem);
    for (Bytes capacity = std::max<Bytes>(0, least - 2); capacity <= least + 1; ++capacity) {
      const auto result = Pack(problem, {.capacity = capacity});
      ASSERT_TRUE(result.ok());
      ExpectSound(problem, *result);
      EXPECT_EQ(result->fits, capacity >= least ? Fits::kYes : Fits::kNot);
    }
  }
}

TEST(Pack, IsTheSameOnEachRun) {
  std::mt19937_64 random(17);
  Problem problem;
  while (problem.buffers.size() < 40) problem = RandomProblem(random, 60, 30, 9);
  for (const unsigned threads : {1u, 2u}) {
    const auto once = Pack(problem, {.seconds = 60, .threads = threads});
    const auto again = Pack(problem, {.seconds = 60, .threads = threads});
    EXPECT_EQ(once->packing.offsets, again->packing.offsets);
  }
}

TEST(Pack, StaysValidWithoutTime) {
  std::mt19937_64 random(19);
  for (int round = 0; round < 20; ++round) {
    const Problem problem = RandomProblem(random, 2000, 1500, 1000, 1 + 7 * (round % 2));
    const auto result = Pack(problem, {.seconds = round % 3 == 0 ? 0.0 : 0.05});
    ASSERT_TRUE(result.ok());
    ExpectSound(problem, *result);
  }
}

/// However long its lives are, a problem of many buffers is answered when the work is done.
TEST(Pack, StaysValidWithoutWork) {
  std::mt19937_64 random(29);
  for (int round = 0; round < 20; ++round) {
    const Problem problem = RandomProblem(random, 3000, 1500, 1000, 1 + 7 * (round % 2));
    const PackOptions options{.seconds = 600, .most_work = std::uint64_t{1000} << (round % 12)};
    const auto result = Pack(problem, options);
    ASSERT_TRUE(result.ok());
    ExpectSound(problem, *result);
    EXPECT_EQ(Pack(problem, options)->packing.offsets, result->packing.offsets) << "not the clock";
  }
}

TEST(PackAsTheyCome, IsValid) {
  std::mt19937_64 random(31);
  for (int round = 0; round < 200; ++round) {
    const Problem problem = RandomProblem(random, 60, 40, 50, 1 + round % 9);
    const Packing packing = PackAsTheyCome(problem);
    EXPECT_EQ(FindFault(problem, packing).value_or("valid"), "valid");
    EXPECT_GE(packing.height, MostAlive(problem));
  }
}

TEST(PackGreedily, IsValidAndNoBetterThanTheBound) {
  std::mt19937_64 random(23);
  for (int round = 0; round < 200; ++round) {
    const Problem problem = RandomProblem(random, 60, 40, 50, 1 + round % 9);
    const Packing packing = PackGreedily(problem);
    EXPECT_EQ(FindFault(problem, packing).value_or("valid"), "valid");
    EXPECT_GE(packing.height, MostAlive(problem));
  }
}

}  // namespace
}  // namespace plimsoll::packing_test

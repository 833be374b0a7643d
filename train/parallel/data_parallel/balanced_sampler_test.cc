#include "train/parallel/data_parallel/balanced_sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <map>
#include <numbers>

#include "train/data/random.h"

namespace plimsoll::train::balanced_sampler_test {
namespace {

/// Pixels of square images with sides from 320 to 640.
std::vector<std::int64_t> Images(std::int64_t count) {
  Random random(1, 0);
  std::vector<std::int64_t> pixels;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t side = 320 + random.Below(321);
    pixels.push_back(side * side);
  }
  return pixels;
}

/// Tokens of texts: log-normal, 1 to 4,096, with a median of 200.
std::vector<std::int64_t> Texts(std::int64_t count) {
  Random random(2, 0);
  std::vector<std::int64_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    const double normal = std::sqrt(-2 * std::log(1 - random.Uniform())) *
                          std::cos(2 * std::numbers::pi * random.Uniform());
    tokens.push_back(std::clamp<std::int64_t>(std::lround(200 * std::exp(normal)), 1, 4096));
  }
  return tokens;
}

struct Balance {
  /// How much more than the mean the fullest rank has: in the worst step, and over all steps.
  double worst = 0;
  double usual = 0;
  std::int64_t steps = 0;
};

/// Of one epoch without its last step.
Balance BalanceOf(BalancedSampler& sampler, const std::function<RankBatches()>& next) {
  Balance balance;
  for (RankBatches step = next(); sampler.position().epoch == 0; step = next()) {
    double most = 0;
    double sum = 0;
    for (const auto& samples : step) {
      const auto cost = static_cast<double>(sampler.Cost(samples));
      most = std::max(most, cost);
      sum += cost;
      EXPECT_EQ(samples.size(), step[0].size());
    }
    const double more = most / (sum / static_cast<double>(step.size())) - 1;
    balance.worst = std::max(balance.worst, more);
    balance.usual += more;
    ++balance.steps;
  }
  balance.usual /= static_cast<double>(balance.steps);
  return balance;
}

/// The same steps, but dealt by chance.
RankBatches DealByChance(RankBatches step, Random& random) {
  std::vector<std::int64_t> samples;
  for (const auto& part : step) samples.insert(samples.end(), part.begin(), part.end());
  Shuffle(samples, random);
  auto at = samples.begin();
  for (auto& part : step) {
    for (std::int64_t& sample : part) sample = *at++;
  }
  return step;
}

void ExpectEven(const std::string& name, const std::vector<std::int64_t>& costs,
                const BalancedSamplerOptions& options) {
  constexpr int kRanks = 4;
  BalancedSampler sampler(costs, kRanks, options);
  const Balance ours = BalanceOf(sampler, [&] { return sampler.Next(); });
  BalancedSamplerOptions any = options;
  any.wave = 1;
  any.budget = 0;
  any.batch = options.batch == 0 ? 8 : options.batch;
  BalancedSampler source(costs, kRanks, any);
  Random random(3, 0);
  const Balance chance = BalanceOf(source, [&] { return DealByChance(source.Next(), random); });
  std::cout << name << ": the fullest rank has " << 100 * ours.usual << " % more than the mean, "
            << 100 * ours.worst << " % in the worst of " << ours.steps << " steps; at random "
            << 100 * chance.usual << " and " << 100 * chance.worst << " %\n";
  // Padded, the longest text of all makes its rank stand out, wherever it goes.
  EXPECT_LT(options.padded ? ours.usual : ours.worst, 0.05) << name;
  EXPECT_GT(chance.worst, ours.worst) << name;
}

TEST(BalancedSampler, RanksHaveNearlyTheSameCost) {
  ExpectEven("images, 8 a rank", Images(5000), {.batch = 8});
  ExpectEven("images, 2 a rank", Images(5000), {.batch = 2});
  ExpectEven("images, 8 a rank, no waves", Images(5000), {.batch = 8, .wave = 1});
  ExpectEven("texts, 8 a rank", Texts(5000), {.batch = 8});
  ExpectEven("texts, 8,192 tokens a rank", Texts(5000), {.budget = 8192});
  ExpectEven("texts, padded, 8 a rank", Texts(5000), {.batch = 8, .padded = true});
  ExpectEven("texts, padded, 8,192 tokens a rank", Texts(5000), {.budget = 8192, .padded = true});
}

TEST(BalancedSampler, EachSampleOnceAnEpochAlsoWhenRanksChange) {
  const std::vector<std::int64_t> costs = Texts(1003);
  const BalancedSamplerOptions options{.batch = 4, .budget = 5000, .wave = 64, .seed = 7};
  std::map<std::int64_t, int> seen;
  const auto take = [&](BalancedSampler& sampler) {
    for (const auto& samples : sampler.Next()) {
      for (const std::int64_t sample : samples) ++seen[sample];
    }
  };
  BalancedSampler four(costs, 4, options);
  while (four.position().epoch < 1 || four.position().samples < 400) take(four);
  BalancedSampler three(costs, 3, options);
  three.Seek(four.position());
  while (three.position().epoch < 3) take(three);
  EXPECT_EQ(three.position().samples, 0);
  EXPECT_EQ(seen.size(), costs.size());
  for (const auto& [sample, times] : seen) EXPECT_EQ(times, 3) << sample;
}

TEST(BalancedSampler, GoesOnWhereItWas) {
  const BalancedSamplerOptions options{.budget = 4096, .seed = 3};
  BalancedSampler one(Texts(500), 2, options);
  for (int i = 0; i < 7; ++i) one.Next();
  BalancedSampler other(Texts(500), 2, options);
  other.Seek(one.position());
  for (int i = 0; i < 100; ++i) ASSERT_EQ(one.Next(), other.Next());
  BalancedSampler another_seed(Texts(500), 2, {.budget = 4096, .seed = 4});
  EXPECT_NE(BalancedSampler(Texts(500), 2, options).Next(), another_seed.Next());
}

TEST(BalancedSampler, KeepsTheBudget) {
  for (const bool padded : {false, true}) {
    BalancedSampler sampler(Texts(2000), 3, {.budget = 6000, .padded = padded});
    std::int64_t largest = 0;
    while (sampler.position().epoch == 0) {
      for (const auto& samples : sampler.Next()) {
        EXPECT_LE(sampler.Cost(samples), 6000);
        largest = std::max(largest, sampler.Cost(samples));
      }
    }
    EXPECT_GT(largest, 5400) << "and makes use of it";
  }
}

TEST(BalancedSampler, FewSamplesAreSpreadOut) {
  BalancedSampler sampler({5, 5, 5}, 4, {.batch = 2});
  std::vector<std::size_t> sizes;
  for (const auto& samples : sampler.Next()) sizes.push_back(samples.size());
  std::sort(sizes.begin(), sizes.end());
  EXPECT_EQ(sizes, (std::vector<std::size_t>{0, 1, 1, 1}));
  EXPECT_EQ(sampler.position(), (BalancedSampler::Position{1, 0}));
}

TEST(BalancedSampler, RefusesWhatCannotBe) {
  EXPECT_THROW(BalancedSampler({1, 2}, 0, {.batch = 1}), c10::Error);
  EXPECT_THROW(BalancedSampler({1, 2}, 2, {}), c10::Error);
  EXPECT_THROW(BalancedSampler({1, 9}, 2, {.budget = 8}), c10::Error);
  EXPECT_THROW(BalancedSampler(std::vector<std::int64_t>{}, 2, {.batch = 1}), c10::Error);
  BalancedSampler sampler({1, 2}, 2, {.batch = 1});
  EXPECT_THROW(sampler.Seek({0, 2}), c10::Error);
  EXPECT_THROW(sampler.Seek({-1, 0}), c10::Error);
}

}  // namespace
}  // namespace plimsoll::train::balanced_sampler_test

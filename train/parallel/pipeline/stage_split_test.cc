#include "train/parallel/pipeline/stage_split.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>

#include "train/models/gpt.h"
#include "train/parallel/training_for_tests.h"

namespace plimsoll::train::stage_split_test {
namespace {

using Aim = StageSplitOptions::Aim;

std::vector<LayerFigures> RandomLayers(std::mt19937& random, int count) {
  const auto draw = [&](int most) {
    return static_cast<Bytes>(std::uniform_int_distribution<int>(0, most)(random));
  };
  std::vector<LayerFigures> layers(static_cast<std::size_t>(count));
  for (LayerFigures& layer : layers) {
    layer = {.kept = draw(100), .saved = draw(40), .given = draw(10), .passing = draw(50)};
    layer.seconds = static_cast<double>(draw(20));
  }
  return layers;
}

struct Outcome {
  Bytes fullest = 0;
  double slowest = 0;
};

Outcome OutcomeOf(const std::vector<LayerFigures>& layers, const StageSplitOptions& options,
                  const std::vector<int>& split) {
  Outcome outcome;
  int begin = 0;
  for (std::size_t stage = 0; stage < split.size(); ++stage) {
    const int end = begin + split[stage];
    outcome.fullest =
        std::max(outcome.fullest, StageBytes(layers, options, static_cast<int>(stage), begin, end));
    double seconds = 0;
    for (int i = begin; i < end; ++i) seconds += layers[static_cast<std::size_t>(i)].seconds;
    outcome.slowest = std::max(outcome.slowest, seconds);
    begin = end;
  }
  return outcome;
}

/// Calls back with each.
template <class Function>
void ForEachSplit(int layers, int stages, std::vector<int>& split, Function function) {
  if (stages == 1) {
    split.push_back(layers);
    function(split);
    split.pop_back();
    return;
  }
  for (int first = 1; first <= layers - stages + 1; ++first) {
    split.push_back(first);
    ForEachSplit(layers - first, stages - 1, split, function);
    split.pop_back();
  }
}

/// By trying all; nothing if none keeps to the limit.
std::optional<Outcome> BestOfAll(const std::vector<LayerFigures>& layers,
                                 const StageSplitOptions& options) {
  std::optional<Outcome> best;
  std::vector<int> split;
  const auto key = [&](const Outcome& one) {
    const auto bytes = static_cast<double>(one.fullest);
    return options.aim == Aim::kTime ? std::array{one.slowest, bytes} : std::array{bytes, 0.0};
  };
  ForEachSplit(static_cast<int>(layers.size()), options.stages, split, [&](const auto& one) {
    const Outcome outcome = OutcomeOf(layers, options, one);
    if (options.limit && outcome.fullest > *options.limit) return;
    if (!best || key(outcome) < key(*best)) best = outcome;
  });
  return best;
}

TEST(StageSplit, IsTheBestOfAll) {
  std::mt19937 random(7);
  int without = 0;
  for (int round = 0; round < 2000; ++round) {
    const int count = 1 + static_cast<int>(random() % 9);
    StageSplitOptions options;
    options.stages = 1 + static_cast<int>(random() % static_cast<unsigned>(std::min(count, 5)));
    options.micro_batches = 1 + static_cast<int>(random() % 6);
    options.aim = random() % 2 == 0 ? Aim::kTime : Aim::kMemory;
    const auto layers = RandomLayers(random, count);
    if (random() % 2 == 0) options.limit = 100 + static_cast<Bytes>(random() % 500);
    const auto best = BestOfAll(layers, options);
    if (!best) {
      ++without;
      EXPECT_THROW(SplitStages(layers, options), c10::Error);
      continue;
    }
    const std::vector<int> split = SplitStages(layers, options);
    EXPECT_EQ(std::accumulate(split.begin(), split.end(), 0), count);
    const Outcome found = OutcomeOf(layers, options, split);
    EXPECT_EQ(found.fullest, best->fullest);
    if (options.aim == Aim::kTime) {
      EXPECT_EQ(found.slowest, best->slowest);
    }
  }
  EXPECT_GT(without, 10) << "limits that cannot be kept were tried too";
}

/// Ten equal layers. What forward saves counts more in the first stages, which then get fewer; the
/// rest is as even as that allows.
TEST(StageSplit, EarlyStagesKeepMoreMicroBatches) {
  const std::vector<LayerFigures> weights(10, {.kept = 100});
  EXPECT_EQ(SplitStages(weights, {.stages = 3, .micro_batches = 8}), (std::vector{3, 3, 4}));
  const std::vector<LayerFigures> activations(11, {.saved = 100});
  EXPECT_EQ(SplitStages(activations, {.stages = 3, .micro_batches = 8}), (std::vector{2, 3, 6}));
  EXPECT_EQ(SplitStages(activations, {.stages = 3, .micro_batches = 1}), (std::vector{3, 4, 4}));
}

TEST(StageSplit, TimesChangeNothingWhereMemoryIsTheAim) {
  std::mt19937 random(9);
  for (int round = 0; round < 50; ++round) {
    std::vector<LayerFigures> layers = RandomLayers(random, 12);
    const auto split = SplitStages(layers, {.stages = 4, .micro_batches = 4});
    for (LayerFigures& layer : layers) layer.seconds = static_cast<double>(random());
    EXPECT_EQ(SplitStages(layers, {.stages = 4, .micro_batches = 4}), split);
  }
}

TEST(StageSplit, MeasuresWhatLayersTake) {
  const auto model = SmallModel("deep gpt", 1);
  const ModelLayers layers = model->AsLayers();
  const Batch batch = WholeBatch("deep gpt", 0);
  const at::Tensor before = Flat(model->parameters());
  const at::Tensor next_random = [] {
    torch::manual_seed(5);
    return at::rand({3});
  }();
  torch::manual_seed(5);
  const auto figures = MeasureLayers(layers, batch);
  EXPECT_TRUE(at::rand({3}).equal(next_random));
  EXPECT_TRUE(Flat(model->parameters()).equal(before));
  ASSERT_EQ(figures.size(), layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    Bytes parameters = 0;
    for (const at::Tensor& one : layers[i].parameters()) {
      parameters += static_cast<Bytes>(one.nbytes());
      EXPECT_FALSE(one.grad().defined());
    }
    EXPECT_EQ(figures[i].kept, 4 * parameters) << "as Adam has it";
    EXPECT_GT(figures[i].saved, 0);
    EXPECT_GT(figures[i].seconds, 0);
  }
  // Samples x positions x width.
  const Bytes hidden = 8 * 6 * 8 * 4;
  EXPECT_EQ(figures[0].given, 0);
  EXPECT_EQ(figures[1].given, hidden);
  EXPECT_GT(figures[1].saved, 10 * hidden);
  for (std::size_t i = 2; i + 1 < figures.size(); ++i) {
    EXPECT_EQ(figures[i].saved, figures[1].saved) << "all blocks are alike";
    EXPECT_EQ(figures[i].passing, figures[1].passing);
  }
}

}  // namespace
}  // namespace plimsoll::train::stage_split_test

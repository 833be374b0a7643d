#include "train/parallel/pipeline/stage_split.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <limits>

namespace plimsoll::train {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// The cost of a stage of layers [begin, end); infinite where it cannot be.
using StageCost = std::function<double(int stage, int begin, int end)>;
/// Of some stages together.
using Together = double (*)(double, double);

double Largest(double a, double b) { return std::max(a, b); }
double Sum(double a, double b) { return a + b; }

/// The split of least cost. Empty if none can be.
struct Best {
  std::vector<int> split;
  double cost = kNever;
};
Best FindBest(int layers, int stages, const StageCost& cost, Together together) {
  // Of the first stages with the first layers, and where the last of them begins.
  struct State {
    double cost = kNever;
    int begin = 0;
  };
  const auto count = static_cast<std::size_t>(layers) + 1;
  std::vector<std::vector<State>> best(static_cast<std::size_t>(stages) + 1,
                                       std::vector<State>(count));
  best[0][0].cost = 0;
  const auto at = [&](int stage, int end) -> State& {
    return best[static_cast<std::size_t>(stage)][static_cast<std::size_t>(end)];
  };
  for (int stage = 0; stage < stages; ++stage) {
    for (int begin = stage; begin < layers; ++begin) {
      const double before = at(stage, begin).cost;
      if (before == kNever) continue;
      for (int end = begin + 1; end <= layers; ++end) {
        const double all = together(before, cost(stage, begin, end));
        if (all < at(stage + 1, end).cost) at(stage + 1, end) = {all, begin};
      }
    }
  }
  Best found{{}, at(stages, layers).cost};
  if (found.cost == kNever) return found;
  for (int stage = stages, end = layers; stage > 0; --stage) {
    const int begin = at(stage, end).begin;
    found.split.insert(found.split.begin(), end - begin);
    end = begin;
  }
  return found;
}

}  // namespace

Bytes StageBytes(const std::vector<LayerFigures>& layers, const StageSplitOptions& options,
                 int stage, int begin, int end) {
  const int alive = std::min(options.micro_batches, options.stages - stage);
  Bytes kept = 0;
  Bytes each = layers[static_cast<std::size_t>(begin)].given;
  Bytes passing = 0;
  for (int i = begin; i < end; ++i) {
    const LayerFigures& layer = layers[static_cast<std::size_t>(i)];
    kept += layer.kept;
    each += layer.saved;
    passing = std::max(passing, layer.passing);
  }
  return kept + alive * each + passing;
}

std::vector<int> SplitStages(const std::vector<LayerFigures>& layers,
                             const StageSplitOptions& options) {
  const int count = static_cast<int>(layers.size());
  TORCH_CHECK(options.stages >= 1 && count >= options.stages, count, " layers cannot be cut into ",
              options.stages, " stages.");
  TORCH_CHECK(options.micro_batches >= 1, "a step has at least one micro-batch.");
  const auto bytes = [&](int stage, int begin, int end) {
    return static_cast<double>(StageBytes(layers, options, stage, begin, end));
  };
  const auto seconds = [&](int /*stage*/, int begin, int end) {
    double sum = 0;
    for (int i = begin; i < end; ++i) sum += layers[static_cast<std::size_t>(i)].seconds;
    return sum;
  };
  const auto least = [&](const StageCost& cost, const StageCost& limited, double limit,
                         Together together) {
    const auto allowed = [&](int stage, int begin, int end) {
      return limited(stage, begin, end) > limit ? kNever : cost(stage, begin, end);
    };
    return FindBest(count, options.stages, allowed, together);
  };
  const double limit = options.limit ? static_cast<double>(*options.limit) : kNever;
  const bool by_time = options.aim == StageSplitOptions::Aim::kTime;
  const Best first = least(by_time ? StageCost(seconds) : StageCost(bytes), bytes, limit, Largest);
  TORCH_CHECK(!first.split.empty(), "no split of the layers into ", options.stages,
              " stages keeps each below ", options.limit.value_or(0), " bytes.");
  if (by_time) {
    const auto within = [&](int stage, int begin, int end) {
      return bytes(stage, begin, end) > limit ? kNever : seconds(stage, begin, end);
    };
    return least(bytes, within, first.cost, Largest).split;
  }
  const auto square = [&](int stage, int begin, int end) {
    const double one = bytes(stage, begin, end) / static_cast<double>(kMiB);
    return one * one;
  };
  return least(square, bytes, first.cost, Sum).split;
}

}  // namespace plimsoll::train

#include "train/parallel/data_parallel/balanced_sampler.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "train/data/random.h"

namespace plimsoll::train {
namespace {

std::vector<std::int64_t> CostsOf(const Source& source) {
  std::vector<std::int64_t> costs;
  for (std::int64_t i = 0; i < source.size(); ++i) costs.push_back(source.Length(i));
  return costs;
}

void Check(const std::vector<std::int64_t>& costs, int ranks,
           const BalancedSamplerOptions& options) {
  TORCH_CHECK(ranks >= 1, "there cannot be ", ranks, " ranks.");
  TORCH_CHECK(options.batch >= 0, "a batch of ", options.batch, " samples cannot be.");
  TORCH_CHECK(options.budget >= 0, "a budget of ", options.budget, " for a batch cannot be.");
  TORCH_CHECK(options.batch > 0 || options.budget > 0,
              "a batch needs a number of samples, or a budget.");
  TORCH_CHECK(options.wave >= 1, "a wave of ", options.wave, " samples cannot be.");
  TORCH_CHECK(!costs.empty(), "there is no sample.");
  for (std::size_t i = 0; i < costs.size(); ++i) {
    TORCH_CHECK(costs[i] >= 1, "sample ", i, " has a length of ", costs[i], ".");
    TORCH_CHECK(options.budget == 0 || costs[i] <= options.budget, "sample ", i,
                " has a length of ", costs[i], ", which is more than the budget of ",
                options.budget, " for a rank.");
  }
}

}  // namespace

BalancedSampler::BalancedSampler(const Source& source, int ranks,
                                 const BalancedSamplerOptions& options)
    : BalancedSampler(CostsOf(source), ranks, options) {}

BalancedSampler::BalancedSampler(std::vector<std::int64_t> costs, int ranks,
                                 const BalancedSamplerOptions& options)
    : costs_(std::move(costs)), ranks_(ranks), options_(options) {
  Check(costs_, ranks, options_);
  OrderEpoch();
}

void BalancedSampler::Seek(const Position& position) {
  const auto samples = static_cast<std::int64_t>(costs_.size());
  TORCH_CHECK(position.epoch >= 0 && position.samples >= 0 && position.samples < samples,
              "there is no position ", position.samples, " in epoch ", position.epoch, " of ",
              samples, " samples.");
  position_ = position;
  OrderEpoch();
}

/// It must not depend on the number of ranks, so that what was given out is the beginning of it for
/// any; and cost must never jump, or a step in which it did would be uneven.
void BalancedSampler::OrderEpoch() {
  Random random(options_.seed, static_cast<std::uint64_t>(position_.epoch));
  std::vector<std::int64_t> samples(costs_.size());
  std::iota(samples.begin(), samples.end(), 0);
  Shuffle(samples, random);
  order_ = samples;
  if (options_.wave == 1) return;
  const auto count = static_cast<std::int64_t>(samples.size());
  const std::int64_t waves = std::max<std::int64_t>(1, count / options_.wave);
  for (std::int64_t wave = 0; wave < waves; ++wave) {
    const auto begin = samples.begin() + count * wave / waves;
    const auto end = samples.begin() + count * (wave + 1) / waves;
    std::stable_sort(begin, end, [&](auto a, auto b) { return CostAt(a) < CostAt(b); });
    // Every other one on the way up, the rest on the way down.
    auto up = order_.begin() + (begin - samples.begin());
    auto down = order_.begin() + (end - samples.begin());
    for (auto at = begin; at != end; ++at) {
      if ((at - begin) % 2 == 0) {
        *up++ = *at;
      } else {
        *--down = *at;
      }
    }
  }
}

std::int64_t BalancedSampler::Cost(const std::vector<std::int64_t>& samples) const {
  std::int64_t sum = 0;
  std::int64_t longest = 0;
  for (const std::int64_t sample : samples) {
    sum += CostAt(sample);
    longest = std::max(longest, CostAt(sample));
  }
  return options_.padded ? longest * static_cast<std::int64_t>(samples.size()) : sum;
}

bool BalancedSampler::Fits(const RankBatches& step) const {
  if (options_.budget == 0) return true;
  return std::all_of(step.begin(), step.end(),
                     [&](const auto& samples) { return Cost(samples) <= options_.budget; });
}

RankBatches BalancedSampler::DealNext(std::int64_t count) const {
  const auto first = order_.begin() + position_.samples;
  // Not always the same rank begins with the most costly one.
  return Deal({first, first + count}, [this](std::int64_t sample) { return CostAt(sample); },
              {.ranks = static_cast<int>(ranks_),
               .padded = options_.padded,
               .first = position_.samples / ranks_});
}

RankBatches BalancedSampler::Next() {
  const std::int64_t left = static_cast<std::int64_t>(costs_.size()) - position_.samples;
  const std::int64_t most = options_.batch == 0 ? left : options_.batch;
  const auto whole = [&](std::int64_t batch) { return std::min(left, batch * ranks_); };
  // One sample for each rank always fits.
  std::int64_t batch = 1;
  RankBatches step = DealNext(whole(batch));
  const auto grow = [&](std::int64_t to) {
    RankBatches larger = DealNext(whole(to));
    if (!Fits(larger)) return false;
    batch = to;
    step = std::move(larger);
    return true;
  };
  while (batch < most && whole(batch) < left && grow(std::min(2 * batch, most))) {
  }
  for (std::int64_t by = batch / 2; by > 0; by /= 2) {
    if (batch + by <= most && whole(batch) < left) grow(batch + by);
  }
  position_.samples += whole(batch);
  if (position_.samples == static_cast<std::int64_t>(costs_.size())) {
    position_ = {.epoch = position_.epoch + 1};
    OrderEpoch();
  }
  return step;
}

}  // namespace plimsoll::train

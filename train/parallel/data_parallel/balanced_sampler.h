// Which samples each rank gets in each step, so that no rank has much more to do, or to hold, than
// the others.
#pragma once

#include <cstdint>
#include <vector>

#include "train/data/deal.h"
#include "train/data/source.h"

namespace plimsoll::train {

struct BalancedSamplerOptions {
  /// Samples of each rank in a step, at most; 0 leaves it to the budget.
  std::int64_t batch = 0;
  /// What one rank's samples may cost together in a step, as Source::Length has it (tokens,
  /// pixels). 0: no limit.
  std::int64_t budget = 0;
  /// The samples of a rank are padded to the longest of them, and each costs as much as that one.
  bool padded = false;
  /// Samples come in waves of about so many, chosen at random, each from the least cost to the most
  /// and back, so that those of one step are alike. A shorter wave is more random and less even. 1:
  /// no waves.
  std::int64_t wave = 4096;
  std::uint64_t seed = 0;
};

/// Each sample once an epoch, in an order that follows from the seed and the epoch alone. In a step
/// all ranks have the same number of samples, and nearly the same cost; only in the last one of an
/// epoch some may have one sample less than others. Each rank makes one of these and takes its
/// part: nothing is sent.
class BalancedSampler {
 public:
  /// Where it is: so many samples of this epoch were given out. A sampler for another number of
  /// ranks, another batch or another budget may go on from it.
  struct Position {
    std::int64_t epoch = 0;
    std::int64_t samples = 0;

    bool operator==(const Position&) const = default;
  };

  /// Asks for the length of every sample. Throws c10::Error for options that cannot be,
  /// or if a sample is longer than the budget.
  BalancedSampler(const Source& source, int ranks, const BalancedSamplerOptions& options);
  /// The same from what each sample costs.
  BalancedSampler(std::vector<std::int64_t> costs, int ranks,
                  const BalancedSamplerOptions& options);

  /// The next step, for all ranks. Epoch after epoch, for ever.
  RankBatches Next();
  /// What one rank's samples cost together.
  std::int64_t Cost(const std::vector<std::int64_t>& samples) const;

  const Position& position() const { return position_; }
  /// Throws c10::Error for a position that there is not.
  void Seek(const Position& position);

 private:
  void OrderEpoch();
  /// The next so many samples.
  RankBatches DealNext(std::int64_t count) const;
  bool Fits(const RankBatches& step) const;
  std::int64_t CostAt(std::int64_t sample) const {
    return costs_[static_cast<std::size_t>(sample)];
  }

  std::vector<std::int64_t> costs_;
  std::int64_t ranks_;
  BalancedSamplerOptions options_;
  Position position_;
  /// Of this epoch.
  std::vector<std::int64_t> order_;
};

}  // namespace plimsoll::train

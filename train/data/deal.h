// The samples of one step, dealt out to ranks so that none has much more than the others.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace plimsoll::train {

/// For each rank the numbers of its samples.
using RankBatches = std::vector<std::vector<std::int64_t>>;

struct DealOptions {
  int ranks = 1;
  /// The samples of a rank are padded to the longest of them, and each costs as much as that one.
  bool padded = false;
  /// This rank begins where all have the same so far.
  std::int64_t first = 0;
};

/// Every rank gets the same number of samples, some one more where it does not come out even, and
/// nearly the same cost. The same for the same samples, whoever asks.
RankBatches Deal(std::vector<std::int64_t> samples,
                 const std::function<std::int64_t(std::int64_t)>& cost, const DealOptions& options);

}  // namespace plimsoll::train

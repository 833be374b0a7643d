#include "step/max_batch.h"

#include <algorithm>
#include <set>

#include "step/time/step_time.h"
#include "step/trial.h"

namespace plimsoll {
namespace {

constexpr std::int64_t kLargestBatch = std::int64_t{1} << 24;
/// A batch that may not fit is called the fastest only if it is so many times as fast as those that
/// surely do: less is within what the times are wrong by.
constexpr double kClearlyFaster = 1.02;

/// The largest for which `holds`, between one for which it does (or 0) and one for which it does
/// not.
template <typename Holds>
std::int64_t Halve(Holds holds, std::int64_t good, std::int64_t bad) {
  while (good + 1 < bad) {
    const std::int64_t middle = good + (bad - good) / 2;
    (holds(middle) ? good : bad) = middle;
  }
  return good;
}

class Search {
 public:
  explicit Search(const Setting& setting) : setting_(setting) {}

  MaxBatch Run() const {
    std::int64_t good = 0;
    std::int64_t bad = 1;
    while (bad < kLargestBatch && Fits(bad)) {
      good = bad;
      bad *= 2;
    }
    const std::int64_t most = Halve([&](std::int64_t n) { return Fits(n); }, good, bad);
    const std::int64_t sure =
        Surely(most) ? most : Halve([&](std::int64_t n) { return Surely(n); }, 0, most);
    MaxBatch found{.sure = SpeedAt(sure), .most = SpeedAt(most)};
    found.fastest = Fastest(found);
    return found;
  }

 private:
  Peaks At(std::int64_t batch) const {
    return Decide(LowerFor(setting_, batch, Estimate::kLikely), setting_);
  }
  bool Fits(std::int64_t batch) const { return At(batch).fits; }
  bool Surely(std::int64_t batch) const {
    return batch > 0 &&
           SurelyFits(At(batch), LowerFor(setting_, batch, Estimate::kUpper), setting_);
  }

  BatchSpeed SpeedAt(std::int64_t batch) const {
    if (batch == 0) return {};
    const Peaks peaks = At(batch);
    return {
        .batch = batch,
        .step_us =
            StepTime(setting_.step, setting_.variant, setting_.gpu, batch, peaks.refused_calls).us,
        .refused = peaks.refused};
  }

  /// Until something is refused, a larger batch is not slower by the sample but for the rounding of
  /// small kernels: so powers of two are looked at, and the ends.
  BatchSpeed Fastest(const MaxBatch& found) const {
    std::set<std::int64_t> batches;
    for (std::int64_t n = 1; n <= found.most.batch; n *= 2) batches.insert(n);
    batches.insert(Halve([&](std::int64_t n) { return At(n).refused == 0; }, found.sure.batch,
                         found.most.batch + 1));
    BatchSpeed sure = found.sure;
    BatchSpeed any = found.most;
    for (const std::int64_t n : batches) {
      if (n == 0) continue;
      const BatchSpeed speed = SpeedAt(n);
      BatchSpeed& best = n <= found.sure.batch ? sure : any;
      if (speed.SamplesPerSecond() > best.SamplesPerSecond()) best = speed;
    }
    if (any.step_us <= 0) return {};
    const bool clearly = any.SamplesPerSecond() > kClearlyFaster * sure.SamplesPerSecond();
    return sure.batch > 0 && !clearly ? sure : any;
  }

  const Setting& setting_;
};

}  // namespace

Result<MaxBatch> FindMaxBatch(const Step& step, const Gpu& gpu, const PredictOptions& options) {
  const Result<Setting> setting = MakeSetting(step, gpu, options);
  if (!setting) return setting.error();
  return Search(*setting).Run();
}

}  // namespace plimsoll

#include "step/max_batch.h"

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "base/parallel.h"
#include "step/time/step_time.h"
#include "step/trial.h"

namespace plimsoll {
namespace {

/// A batch that may not fit is called the fastest only if it is so many times as fast as those that
/// surely do: less is within what the times are wrong by.
constexpr double kClearlyFaster = 1.02;
/// How many batches of a range are tried at once: fewer of a job that asks for more, so that the
/// search takes about as long.
constexpr std::int64_t kMostTried = 64;
constexpr std::int64_t kLeastTried = 16;
constexpr std::int64_t kRequestsTried = 600'000;

/// The part of the batches below the largest that is scanned again.
constexpr std::int64_t kTightShare = 8;

using Test = std::function<bool(std::int64_t)>;

/// Numbers evenly spread between two, the first and the last of them too, and which pass a test.
struct Scan {
  std::vector<std::int64_t> numbers;
  std::vector<char> passes;

  Scan(const Test& test, std::int64_t from, std::int64_t to, std::int64_t most) {
    const std::int64_t between = to - from - 1;
    const std::int64_t count = std::min(between, most);
    for (std::int64_t i = 0; i < count; ++i) {
      numbers.push_back(from + 1 + i * (between - 1) / std::max<std::int64_t>(1, count - 1));
    }
    passes.resize(numbers.size());
    ParallelFor(numbers.size(), [&](std::size_t i) { passes[i] = test(numbers[i]) ? 1 : 0; });
  }
};

// A larger batch may fit where a smaller one does not: with other sizes, other cached blocks suit.
// So ranges are scanned, not halved, and then scanned more finely where the answer changes.

/// The largest between two that passes, of those tried; `good` if none does.
std::int64_t LastThatPasses(const Test& test, std::int64_t good, std::int64_t bad,
                            std::int64_t tried) {
  while (good + 1 < bad) {
    const Scan scan(test, good, bad, tried);
    std::size_t passing = scan.numbers.size();
    while (passing > 0 && !scan.passes[passing - 1]) --passing;
    if (passing < scan.numbers.size()) bad = scan.numbers[passing];
    if (passing > 0) good = scan.numbers[passing - 1];
  }
  return good;
}

/// The largest between two up to which all that were tried pass; `good` if the next does not.
std::int64_t LastBeforeAFailure(const Test& test, std::int64_t good, std::int64_t bad,
                                std::int64_t tried) {
  while (good + 1 < bad) {
    const Scan scan(test, good, bad, tried);
    const auto failing = static_cast<std::size_t>(
        std::find(scan.passes.begin(), scan.passes.end(), 0) - scan.passes.begin());
    if (failing < scan.numbers.size()) bad = scan.numbers[failing];
    if (failing > 0) good = scan.numbers[failing - 1];
  }
  return good;
}

std::int64_t TriedAtOnce(const Setting& setting) {
  const Lowered one = LowerFor(setting, 1, Estimate::kLikely);
  const auto requests = static_cast<std::int64_t>(one.workload.requests.size());
  const std::int64_t runs = setting.AddressesMatter() ? 2 + kShuffles : 2;
  return std::clamp(kRequestsTried / std::max<std::int64_t>(1, requests * runs), kLeastTried,
                    kMostTried);
}

class Search {
 public:
  explicit Search(const Setting& setting) : setting_(setting), tried_(TriedAtOnce(setting)) {}

  std::int64_t Most() const {
    std::int64_t good = 0;
    std::int64_t bad = 1;
    while (bad < kLargestBatch && Fits(bad)) {
      good = bad;
      bad *= 2;
    }
    return LastThatPasses([&](std::int64_t n) { return Fits(n); }, good, bad, tried_);
  }

  MaxBatch Run() const {
    const std::int64_t most = Most();
    MaxBatch found{.sure = SpeedAt(Sure(most)), .most = SpeedAt(most)};
    // Those just below the sure one were each tried.
    const bool each = found.sure.batch <= tried_;
    found.tried_every = each ? 1 : (most - 1 + tried_ - 2) / (tried_ - 1);
    found.fastest = Fastest(found);
    return found;
  }

 private:
  Peaks At(std::int64_t batch) const {
    return Decide(LowerFor(setting_, batch, Estimate::kLikely), setting_);
  }
  bool Fits(std::int64_t batch) const { return At(batch).fits; }
  /// Scans overlap, so what is known is kept. From any thread.
  bool Surely(std::int64_t batch) const {
    {
      const std::lock_guard lock(mutex_);
      if (const auto known = surely_.find(batch); known != surely_.end()) return known->second;
    }
    const bool surely =
        SurelyFits(At(batch), LowerFor(setting_, batch, Estimate::kUpper), setting_);
    const std::lock_guard lock(mutex_);
    return surely_[batch] = surely;
  }

  /// Where memory becomes tight, single batches begin to need more than there is: below the largest
  /// of a coarse scan more of them are tried, until none of those just below fails.
  std::int64_t Sure(std::int64_t most) const {
    const auto last = [&](std::int64_t good, std::int64_t bad) {
      return LastBeforeAFailure([&](std::int64_t n) { return Surely(n); }, good, bad, tried_);
    };
    std::int64_t sure = last(0, most + 1);
    for (std::int64_t before = most + 1; sure < before;) {
      before = sure;
      sure = last(sure - sure / kTightShare, sure + 1);
      sure = last(std::max<std::int64_t>(0, sure - tried_), sure + 1);
    }
    return sure;
  }

  BatchSpeed SpeedAt(std::int64_t batch) const {
    if (batch == 0) return {};
    const Peaks peaks = At(batch);
    return {
        .batch = batch,
        .samples = batch * setting_.variant.passes,
        .step_us =
            StepTime(setting_.step, setting_.variant, setting_.gpu, batch, peaks.refused_calls).us,
        .refused = peaks.refused};
  }

  /// Until something is refused, a larger batch is not slower by the sample but for the rounding of
  /// small kernels: so powers of two are looked at, and the ends.
  BatchSpeed Fastest(const MaxBatch& found) const {
    std::set<std::int64_t> batches;
    for (std::int64_t n = 1; n <= found.most.batch; n *= 2) batches.insert(n);
    batches.insert(LastThatPasses([&](std::int64_t n) { return At(n).refused == 0; },
                                  found.sure.batch, found.most.batch + 1, tried_));
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
  std::int64_t tried_;
  mutable std::mutex mutex_;
  mutable std::map<std::int64_t, bool> surely_;
};

}  // namespace

Result<MaxBatch> FindMaxBatch(const Step& step, const Gpu& gpu, const PredictOptions& options) {
  const Result<Setting> setting = MakeSetting(step, gpu, options);
  if (!setting) return setting.error();
  return Search(*setting).Run();
}

Result<std::int64_t> LargestThatMayFit(const Step& step, const Gpu& gpu,
                                       const PredictOptions& options) {
  const Result<Setting> setting = MakeSetting(step, gpu, options);
  if (!setting) return setting.error();
  return Search(*setting).Most();
}

}  // namespace plimsoll

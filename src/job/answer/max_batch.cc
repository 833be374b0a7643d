#include "job/answer/max_batch.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "base/parallel.h"
#include "base/work_budget.h"
#include "job/answer/long_search.h"

namespace plimsoll {
namespace {

/// How many batches of a range are tried at once: fewer of a job that asks for more, so that the
/// search takes about as long.
constexpr std::int64_t kMostTried = 64;
constexpr std::int64_t kLeastTried = 16;
constexpr std::int64_t kRequestsTried = 600'000;
/// From here on fewer than kLeastTried are, down to kFewestTried.
constexpr std::int64_t kRequestsOfLongSteps = 8'000'000;
constexpr std::int64_t kFewestTried = 4;
/// What a search may take, as Trial counts it: that for the largest that may fit, for the largest
/// that surely does, for the fastest.
constexpr std::int64_t kWorkForMost = 16'000'000;
constexpr std::int64_t kWorkForSure = 40'000'000;
constexpr std::int64_t kWorkForFastest = 10'000'000;
/// A batch that is doubled so often is as large as most are.
constexpr std::int64_t kDoublings = 16;
/// From so many events on a job no longer stays in the caches: the same work takes three times as
/// long.
constexpr std::size_t kEventsOfLongJobs = 50'000;

/// The part of the batches below the largest that is scanned again.
constexpr std::int64_t kTightShare = 8;

/// Whether a batch passes, and what it took to find out.
struct Tested {
  bool passes = false;
  std::int64_t work = 0;
};
using Test = std::function<Tested(std::int64_t)>;

/// Numbers evenly spread between two, the first and the last of them too, and which pass a test.
struct Scan {
  std::vector<std::int64_t> numbers;
  std::vector<char> passes;

  Scan(const Test& test, std::int64_t from, std::int64_t to, std::int64_t most,
       WorkBudget& budget) {
    const std::int64_t between = to - from - 1;
    const std::int64_t count = std::min(between, most);
    for (std::int64_t i = 0; i < count; ++i) {
      numbers.push_back(from + 1 + i * (between - 1) / std::max<std::int64_t>(1, count - 1));
    }
    std::vector<Tested> tested(numbers.size());
    ParallelFor(numbers.size(), [&](std::size_t i) { tested[i] = test(numbers[i]); });
    for (const Tested& one : tested) {
      passes.push_back(one.passes ? 1 : 0);
      budget.Spend(one.work);
    }
  }
};

// A larger batch may fit where a smaller one does not: with other sizes, other cached blocks suit.
// So ranges are scanned, not halved, and then scanned more finely where the answer changes.

/// Between which the answer lies: the one passes, the other does not.
struct Between {
  std::int64_t good = 0;
  std::int64_t bad = 0;
};

/// The largest between two that passes, of those tried; `good` if none does. Not all the way where
/// the budget is spent before.
Between LastThatPasses(const Test& test, std::int64_t good, std::int64_t bad, std::int64_t tried,
                       WorkBudget& budget) {
  while (good + 1 < bad && !budget.spent()) {
    const Scan scan(test, good, bad, tried, budget);
    std::size_t passing = scan.numbers.size();
    while (passing > 0 && !scan.passes[passing - 1]) --passing;
    if (passing < scan.numbers.size()) bad = scan.numbers[passing];
    if (passing > 0) good = scan.numbers[passing - 1];
  }
  return {good, bad};
}

/// The largest between two up to which all that were tried pass; `good` if the next does not.
std::int64_t LastBeforeAFailure(const Test& test, std::int64_t good, std::int64_t bad,
                                std::int64_t tried, WorkBudget& budget) {
  while (good + 1 < bad && !budget.spent()) {
    const Scan scan(test, good, bad, tried, budget);
    const auto failing = static_cast<std::size_t>(
        std::find(scan.passes.begin(), scan.passes.end(), 0) - scan.passes.begin());
    if (failing < scan.numbers.size()) bad = scan.numbers[failing];
    if (failing > 0) good = scan.numbers[failing - 1];
  }
  return good;
}

std::int64_t TriedAtOnce(std::int64_t work) {
  if (kLeastTried * work > kRequestsOfLongSteps) {
    return std::clamp(kRequestsOfLongSteps / work, kFewestTried, kLeastTried);
  }
  return std::clamp(kRequestsTried / work, kLeastTried, kMostTried);
}

class BatchSearch {
 public:
  explicit BatchSearch(const RankSet& ranks) : ranks_(ranks) {
    MeasureAtOne();
    tried_ = TriedAtOnce(work_at_one_);
  }

  /// The budget would be spent by doubling the batch, or not even the fewest batches of a scan are
  /// within it.
  bool IsTooLong() const {
    return kDoublings * work_of_a_trial_ > Allowed(kWorkForMost) ||
           kFewestTried * work_at_one_ > Allowed(kWorkForSure);
  }

  Between Most() const {
    const Test fits = [&](std::int64_t n) {
      const RankTrials trials = At(n);
      return Tested{trials.MayFit(), trials.work()};
    };
    WorkBudget budget(Allowed(kWorkForMost));
    Between most{.good = 0, .bad = 1};
    while (most.bad < kLargestBatch) {
      const Tested tested = fits(most.bad);
      budget.Spend(tested.work);
      if (!tested.passes) break;
      most = {.good = most.bad, .bad = 2 * most.bad};
    }
    return LastThatPasses(fits, most.good, most.bad, tried_, budget);
  }

  MaxBatch Run() const {
    Between most = Most();
    const std::int64_t first_steps = most.good;
    most = LastThatLasts(most);
    MaxBatch found{.sure = SpeedAt(Sure(most.good)), .most = SpeedAt(most.good)};
    if (most.good < first_steps) found.first_steps = first_steps;
    if (most.good + 1 < most.bad) found.untried_below = most.bad;
    // Those just below the sure one were each tried.
    const bool each = found.sure.batch <= tried_;
    found.tried_every = each ? 1 : (most.good - 1 + tried_ - 2) / (tried_ - 1);
    found.fastest = Fastest(found);
    return found;
  }

 private:
  /// One rank at a time: all of them at once are large.
  void MeasureAtOne() {
    for (const Setting& setting : ranks_.settings()) {
      const Trial trial(setting.WithBatch(1));
      work_at_one_ += trial.WorkToBeSure();
      trial.decided();
      work_of_a_trial_ += trial.work();
    }
  }
  std::int64_t Allowed(std::int64_t work) const {
    return ranks_.events() > kEventsOfLongJobs ? work / 3 : work;
  }
  RankTrials At(std::int64_t batch) const { return RankTrials(ranks_.WithBatch(batch)); }

  /// A leak is larger with a larger batch, and so is what the host holds: halving finds the last
  /// batch that goes on for good.
  Between LastThatLasts(const Between& fits) const {
    if (fits.good == 0 || At(fits.good).Last()) return fits;
    Between lasts{.good = 0, .bad = fits.good};
    while (lasts.good + 1 < lasts.bad) {
      const std::int64_t middle = lasts.good + (lasts.bad - lasts.good) / 2;
      (At(middle).Last() ? lasts.good : lasts.bad) = middle;
    }
    return lasts;
  }
  /// Scans overlap, so what is known is kept. From any thread.
  Tested Surely(std::int64_t batch) const {
    {
      const std::lock_guard lock(mutex_);
      if (const auto known = surely_.find(batch); known != surely_.end()) return {known->second};
    }
    const RankTrials trials = At(batch);
    const bool surely = trials.SurelyFit();
    const std::lock_guard lock(mutex_);
    surely_[batch] = surely;
    return {surely, trials.work()};
  }

  /// Where memory becomes tight, single batches begin to need more than there is: below the largest
  /// of a coarse scan more of them are tried, until none of those just below fails.
  std::int64_t Sure(std::int64_t most) const {
    WorkBudget budget(Allowed(kWorkForSure));
    const auto last = [&](std::int64_t good, std::int64_t bad) {
      return LastBeforeAFailure([&](std::int64_t n) { return Surely(n); }, good, bad, tried_,
                                budget);
    };
    std::int64_t sure = last(0, most + 1);
    for (std::int64_t before = most + 1; sure < before && !budget.spent();) {
      before = sure;
      sure = last(sure - sure / kTightShare, sure + 1);
      sure = last(std::max<std::int64_t>(0, sure - tried_), sure + 1);
    }
    return sure;
  }

  BatchSpeed SpeedAt(std::int64_t batch) const {
    if (batch == 0) return {};
    const RankTrials trials = At(batch);
    return {.batch = batch,
            .samples = batch * ranks_.first().variant().passes,
            .step_us = trials.StepMicroseconds(),
            .refused = trials.Refused()};
  }

  /// The largest up to `most` that is refused nothing.
  std::int64_t LastRefusedNothing(const MaxBatch& found) const {
    if (found.most.batch == 0 || !At(found.most.batch).Borrow()) return found.most.batch;
    WorkBudget budget(Allowed(kWorkForFastest));
    const Test test = [&](std::int64_t n) {
      const RankTrials trials = At(n);
      return Tested{trials.Refused() == 0, trials.work()};
    };
    return LastThatPasses(test, found.sure.batch, found.most.batch + 1, tried_, budget).good;
  }

  /// Until something is refused, a larger batch is not slower by the sample but for the rounding of
  /// small kernels: so powers of two are looked at, and the ends. Of a long step, the largest few.
  BatchSpeed Fastest(const MaxBatch& found) const {
    std::set<std::int64_t> batches;
    for (std::int64_t n = 1; n <= found.most.batch; n *= 2) batches.insert(n);
    batches.insert(LastRefusedNothing(found));
    const auto affordable = static_cast<std::size_t>(
        std::max<std::int64_t>(2, 2 * Allowed(kWorkForFastest) / work_at_one_));
    while (batches.size() > affordable) batches.erase(batches.begin());
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

  const RankSet& ranks_;
  /// To see whether a batch of one surely fits, and whether it may.
  std::int64_t work_at_one_ = 1;
  std::int64_t work_of_a_trial_ = 0;
  std::int64_t tried_ = 0;
  mutable std::mutex mutex_;
  mutable std::map<std::int64_t, bool> surely_;
};

}  // namespace

MaxBatch FindMaxBatch(const RankSet& ranks) {
  const BatchSearch search(ranks);
  return search.IsTooLong() ? FindMaxBatchOfLongStep(ranks) : search.Run();
}

std::int64_t LargestPowerThatSurelyFits(const RankSet& ranks) {
  const auto most = static_cast<std::uint64_t>(LargestThatMayFit(ranks));
  auto batch = static_cast<std::int64_t>(std::bit_floor(most));
  while (batch > 0 && !RankTrials(ranks.WithBatch(batch)).SurelyFit()) batch /= 2;
  return batch;
}

std::int64_t LargestThatMayFit(const RankSet& ranks) {
  const BatchSearch search(ranks);
  return search.IsTooLong() ? FindEndsOfLongStep(ranks).good : search.Most().good;
}

std::vector<std::string> BrokenInvariants(const MaxBatch& m) {
  std::vector<std::string> broken;
  const auto expect = [&](bool holds, const char* what) {
    if (!holds) broken.emplace_back(what);
  };
  expect(m.sure.batch <= m.most.batch, "what surely fits may fit");
  expect(m.fastest.batch <= m.most.batch, "the fastest fits");
  expect(m.sure.refused == 0, "what surely fits is refused nothing");
  const double fastest = m.fastest.SamplesPerSecond();
  expect(m.fastest.batch == 0 || fastest >= m.sure.SamplesPerSecond(),
         "nothing that surely fits is faster than the fastest");
  return broken;
}

}  // namespace plimsoll

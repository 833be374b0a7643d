#include "job/answer/long_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace plimsoll {
namespace {

/// The second batch of the line is the largest of these that fits; the first is 1.
constexpr std::array<std::int64_t, 3> kSeconds = {4096, 64, 4};
/// The search ends where the smallest batch that does not fit is this much larger than one that
/// does, or after so many batches.
constexpr double kCloseEnough = 1.05;
constexpr int kMostBatches = 10;
/// How far from the end that the line tells batches are tried, and how much later a rank may end to
/// be left out of that.
constexpr double kNearTheEnd = 0.03;
constexpr double kMuchLater = 1.25;
/// The parts of the largest batch that are asked whether they surely fit.
constexpr std::array<double, 4> kMaybeSure = {1, 0.97, 0.85, 0.45};

class LongSearch {
 public:
  explicit LongSearch(const RankSet& ranks) : ranks_(ranks) {}

  TestedEnds Ends() {
    TestedEnds ends;
    if (!FollowAll(1, &Rank::at_one)) return ends;
    ends = {.good = 1, .bad = kLargestBatch + 1};
    for (const std::int64_t second : kSeconds) {
      second_ = second;
      if (FollowAll(second, &Rank::at_second)) break;
      ends.bad = second;
    }
    if (ends.bad == kSeconds.back()) return ends;
    ends.good = second_;
    const double end = KeepTight();
    for (const double share : {1 - kNearTheEnd, 1 + kNearTheEnd}) {
      Narrow(static_cast<std::int64_t>(std::min(share * end, double(kLargestBatch))), ends);
    }
    Narrow(kLargestBatch, ends);
    for (int i = 0; i < kMostBatches; ++i) {
      if (double(ends.bad) <= kCloseEnough * double(ends.good)) break;
      Narrow(static_cast<std::int64_t>(std::sqrt(double(ends.good) * double(ends.bad))), ends);
    }
    return ends;
  }

  MaxBatch Run() {
    const TestedEnds ends = Ends();
    MaxBatch found;
    std::int64_t most = ends.good;
    if (most > 0 && !At(most).Last()) {
      found.first_steps = most;
      found.untried_below = most;
      most = At(1).Last() ? 1 : 0;
    } else if (ends.good + 1 < ends.bad && ends.bad <= kLargestBatch) {
      found.untried_below = ends.bad;
    }
    found.most = SpeedAt(most);
    found.sure = SpeedAt(Sure(most));
    found.tried_every = std::max<std::int64_t>(1, found.sure.batch);
    const double sure = found.sure.SamplesPerSecond();
    const bool clearly = found.most.SamplesPerSecond() > kClearlyFaster * sure;
    found.fastest = found.sure.batch > 0 && !clearly ? found.sure : found.most;
    if (found.most.step_us <= 0) found.fastest = {};
    return found;
  }

 private:
  struct Rank {
    const Setting* setting = nullptr;
    Bytes at_one = 0;
    Bytes at_second = 0;

    /// The batch at which the line meets the room.
    double End(std::int64_t second) const {
      const double each = double(at_second - at_one) / double(second - 1);
      if (each <= 0) return double(kLargestBatch);
      const double left = double(setting->Room() - at_second);
      return std::min(double(kLargestBatch), double(second) + left / each);
    }
  };

  /// One rank at a time: all of them at once are large.
  bool FollowAll(std::int64_t batch, Bytes Rank::*reserved) {
    if (all_.empty()) {
      for (const Setting& setting : ranks_.settings()) all_.push_back({.setting = &setting});
    }
    for (Rank& rank : all_) {
      const Trial trial(rank.setting->WithBatch(batch));
      rank.*reserved = trial.unlimited().reserved;
      borrows_ = borrows_ || trial.lowered().borrows;
      if (!trial.decided().fits) return false;
    }
    return true;
  }

  /// Keeps those that end first, or little later; when they do.
  double KeepTight() {
    double end = double(kLargestBatch);
    for (const Rank& rank : all_) end = std::min(end, rank.End(second_));
    std::erase_if(all_, [&](const Rank& rank) { return rank.End(second_) > kMuchLater * end; });
    return end;
  }

  bool MayFit(std::int64_t batch) const {
    return std::ranges::all_of(all_, [&](const Rank& rank) {
      return Trial(rank.setting->WithBatch(batch)).decided().fits;
    });
  }

  void Narrow(std::int64_t batch, TestedEnds& ends) const {
    if (batch <= ends.good || batch >= ends.bad) return;
    (MayFit(batch) ? ends.good : ends.bad) = batch;
  }

  std::int64_t Sure(std::int64_t most) const {
    for (const double share : kMaybeSure) {
      const auto batch = static_cast<std::int64_t>(share * double(most));
      if (batch < 1) return 0;
      const bool surely = std::ranges::all_of(all_, [&](const Rank& rank) {
        return Trial(rank.setting->WithBatch(batch)).surely_fits();
      });
      if (surely) return batch;
    }
    return most > 1 && At(1).SurelyFit() ? 1 : 0;
  }

  RankTrials At(std::int64_t batch) const { return RankTrials(ranks_.WithBatch(batch)); }

  BatchSpeed SpeedAt(std::int64_t batch) const {
    if (batch == 0) return {};
    const RankTrials trials = At(batch);
    return {.batch = batch,
            .samples = batch * ranks_.first().variant().passes,
            .step_us = borrows_ ? trials.StepMicroseconds() : trials.UnlimitedStepMicroseconds(),
            .refused = borrows_ ? trials.Refused() : 0};
  }

  const RankSet& ranks_;
  std::vector<Rank> all_;
  std::int64_t second_ = kSeconds.front();
  bool borrows_ = false;
};

}  // namespace

TestedEnds FindEndsOfLongStep(const RankSet& ranks) { return LongSearch(ranks).Ends(); }

MaxBatch FindMaxBatchOfLongStep(const RankSet& ranks) { return LongSearch(ranks).Run(); }

}  // namespace plimsoll
